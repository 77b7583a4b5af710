"""What a checkpoint on disk offers, whatever its format, and the check that it holds exactly what the model needs."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from .config import ModelConfig

NAMES_SHOWN = 5


class CheckpointError(ValueError):
    """The checkpoint can't be loaded; the message names the file, tensor or key."""


class Checkpoint(Protocol):
    """An opened checkpoint. Names and layout of tensors are Hugging Face's."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor it holds, those that can be ignored left out."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor, in whatever float dtype it is stored."""
        ...


def check_tensors(checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError that names the missing, unexpected and misshapen tensors."""
    found = checkpoint.shapes
    problems = []
    if missing := sorted(expected.keys() - found.keys()):
        problems.append(f"missing {_shorten(missing)}")
    if extra := sorted(found.keys() - expected.keys()):
        problems.append(f"unexpected {_shorten(extra)}")
    misshapen = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in sorted(expected.items())
        if name in found and found[name] != shape
    ]
    if misshapen:
        problems.append(f"misshapen {_shorten(misshapen)}")
    if problems:
        raise CheckpointError("the checkpoint's tensors don't fit its configuration: " + "; ".join(problems))


def read_tensors(
    checkpoint: Checkpoint, names: Mapping[str, object], dtype: torch.dtype, progress: Callable[[int, int], None]
) -> dict[str, torch.Tensor]:
    """All named tensors, converted one by one; `progress(done, total)` after each."""
    tensors = {}
    for done, name in enumerate(names, start=1):
        tensors[name] = checkpoint.read(name).to(dtype)
        progress(done, len(names))
    return tensors


def _shorten(items: list[str]) -> str:
    more = f" and {len(items) - NAMES_SHOWN} more" if len(items) > NAMES_SHOWN else ""
    return ", ".join(items[:NAMES_SHOWN]) + more
