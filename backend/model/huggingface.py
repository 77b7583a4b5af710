"""Hugging Face checkpoint folders: config.json and safetensors, in one file or several with an index."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .checkpoint import CheckpointError
from .config import ModelConfig, config_from_huggingface

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> Any:
    """A JSON file's content. Raises CheckpointError for a missing or broken file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} can't be read as JSON: {error}") from error


class HuggingFaceCheckpoint:
    """One folder. Raises CheckpointError for missing or broken files."""

    def __init__(self, directory: Path) -> None:
        self.raw_config = read_json(directory / "config.json")
        self.config: ModelConfig = config_from_huggingface(self.raw_config)
        self._files: dict[str, Any] = {}
        for file in self._weight_files(directory):
            try:
                handle = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file} can't be read as safetensors: {error}") from error
            names: list[str] = list(handle.keys())  # type: ignore[no-untyped-call]
            self._files |= dict.fromkeys(names, handle)

    @staticmethod
    def _weight_files(directory: Path) -> list[Path]:
        if (directory / _SINGLE).exists():
            return [directory / _SINGLE]
        if (directory / _INDEX).exists():
            weight_map = read_json(directory / _INDEX).get("weight_map", {})
            return [directory / name for name in sorted(set(weight_map.values()))]
        raise CheckpointError(f"{directory} has neither {_SINGLE} nor {_INDEX}")

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes without the tensors that old or tied checkpoints repeat."""
        return {
            name: tuple(handle.get_slice(name).get_shape())
            for name, handle in self._files.items()
            if not name.endswith(".rotary_emb.inv_freq")
            and not (name == "lm_head.weight" and self.config.ties_embeddings)
        }

    def read(self, name: str) -> torch.Tensor:
        """One tensor as stored."""
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            raise CheckpointError(f"{name} has the unsupported type {tensor.dtype}")
        return tensor
