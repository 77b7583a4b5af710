"""GGUF files: tensors dequantised, renamed and laid out as in a Hugging Face checkpoint.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from .checkpoint import CheckpointError
from .config import ModelConfig, RopeConfig, config_from_gguf
from .rotary import split_rows

_FREQUENCY_FACTORS = "rope_freqs.weight"
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class _Reader(gguf.GGUFReader):
    """The library's reader over a plain array: it slices its memory map some 800,000 times, and every slice of a
    numpy.memmap is checked for shared memory, which would be half of the loading time.
    """

    @property
    def data(self) -> Any:
        """The mapped file."""
        return self._plain

    @data.setter
    def data(self, mapped: Any) -> None:
        self._plain = np.asarray(mapped)


class GGUFCheckpoint:
    """One GGUF file. Raises CheckpointError for a file that isn't one."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = _Reader(path)
        except (ValueError, IndexError, OSError) as error:
            raise CheckpointError(f"{path} can't be read as a GGUF file: {error}") from error
        self._tensors = {_huggingface_name(tensor.name): tensor for tensor in self._reader.tensors}

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The metadata, key → value."""
        return {key: field.contents() for key, field in self._reader.fields.items()}

    @cached_property
    def config(self) -> ModelConfig:
        """Sizes from the metadata; the vocabulary's from the embedding table."""
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise CheckpointError("the GGUF file has no token_embd.weight")
        config = config_from_gguf(
            self.fields, vocab_size=int(embedding.shape[1]), ties_embeddings="lm_head.weight" not in self._tensors
        )
        if _FREQUENCY_FACTORS in self._tensors:
            factors = tuple(self._dequantised(_FREQUENCY_FACTORS).tolist())
            config = replace(config, rope=RopeConfig(config.rope.theta, "factors", factors=factors))
        return config

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Sizes in row-major order: GGUF lists the fastest axis first."""
        return {
            name: tuple(int(n) for n in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
            if name != _FREQUENCY_FACTORS
        }

    def read(self, name: str) -> torch.Tensor:
        """One tensor in float32."""
        tensor = self._dequantised(name)
        if self.config.family.gguf_permutes_qk:
            if ".q_proj." in name:
                return split_rows(tensor, self.config.num_heads)
            if ".k_proj." in name:
                return split_rows(tensor, self.config.num_kv_heads)
        return tensor

    def _dequantised(self, name: str) -> torch.Tensor:
        stored = self._tensors[name]
        try:
            values = gguf.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise CheckpointError(f"{stored.name} has the unsupported type {stored.tensor_type.name}") from error
        return torch.tensor(values, dtype=torch.float32)


def _huggingface_name(name: str) -> str:
    """Names that aren't known stay as they are, to be reported as unexpected."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _NAMES:
        return f"{_NAMES[parts[0]]}.{parts[1]}"
    return name
