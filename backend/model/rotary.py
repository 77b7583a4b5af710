"""Rotary position embedding as one complex multiplication.

A head's channels are kept as interleaved pairs (real, imaginary), so rotating by position is multiplying by
e^(i·position·frequency). Hugging Face checkpoints keep the pairs as two halves instead; `interleave_rows` reorders
query and key rows once at load. Scores don't change, as both sides of the dot product are reordered alike.
"""

import math

import torch

from .config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each channel pair, float32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "factors":
        return frequencies / torch.tensor(rope.factors, dtype=torch.float32)
    if rope.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        low = rope.original_max_tokens / rope.low_freq_factor
        high = rope.original_max_tokens / rope.high_freq_factor
        kept_ratio = (rope.original_max_tokens / wavelengths - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        between = (1 - kept_ratio) * frequencies / rope.factor + kept_ratio * frequencies
        stretched = torch.where(wavelengths > low, frequencies / rope.factor, between)
        return torch.where(wavelengths < high, frequencies, stretched)
    return frequencies


def rotations(frequencies: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Unit complex numbers for positions [n]: complex64 [n, 1, head_dim / 2]."""
    angles = positions.to(torch.float32).unsqueeze(1) * frequencies
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def rotate_(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate heads [n, num_heads, head_dim] (pairs interleaved) in place, in float32 whatever their dtype."""
    pairs = heads.view(*heads.shape[:-1], -1, 2)
    if heads.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotation)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()).mul_(rotation)))


def interleave_rows(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows [num_heads * head_dim, ...] from two halves a head to interleaved pairs. Works for biases and norms too."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def split_rows(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The inverse of `interleave_rows`."""
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
