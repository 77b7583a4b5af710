"""A model of this engine as a Hugging Face folder, so that another server can run the very same weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .model.checkpoint import CheckpointError
from .model.config import ModelConfig
from .model.gguf_file import GGUFCheckpoint
from .tokenizer import Tokenizer
from .tokenizer_files import tokenizer_from_gguf
from .weights import EMBEDDED, embedded_path


def export_huggingface(source: str, directory: Path, dtype: torch.dtype) -> None:
    """Write config.json, model.safetensors and the tokenizer's files of "embedded" or a GGUF file.

    The dequantised weights are rounded to `dtype`, as `load_model` rounds them. Raises CheckpointError for a source
    that isn't a GGUF file or that Hugging Face's format can't express, and what `load_model` raises.
    """
    path = embedded_path() if source == EMBEDDED else Path(source)
    if not path.is_file():
        raise CheckpointError(f'{path} is not a GGUF file; known: a .gguf file, or "{EMBEDDED}"')
    checkpoint = GGUFCheckpoint(path)
    tokenizer = tokenizer_from_gguf(checkpoint.fields)
    config = _config(checkpoint.config, tokenizer, dtype)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: checkpoint.read(name).to(dtype).contiguous() for name in checkpoint.shapes}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer.export(directory)


def _config(config: ModelConfig, tokenizer: Tokenizer, dtype: torch.dtype) -> dict[str, Any]:
    family = config.family
    if config.rope.kind != "default" or family.gguf is None:
        raise CheckpointError(
            f"a {family.architecture} with rope type {config.rope.kind!r} can't be exported; known: default"
        )
    return {
        "architectures": [family.architecture],
        "model_type": family.gguf,
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_model_tokens,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.ties_embeddings,
        "eos_token_id": sorted(tokenizer.eos_token_ids),
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
