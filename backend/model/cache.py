"""The paged key/value cache: one tensor, cut into blocks of `block_size` tokens.

Layout: [num_layers, num_blocks, 2 (key, value), num_kv_heads, block_size, head_dim]. A head's tokens of one block are
one contiguous run, so that gathering by block yields contiguous [sequence, head, token, channel] keys and values for
the batched products: on CPUs these are two to three times faster there than on strided ones, and a run is big enough
for the copy to go at memory speed.
"""

import torch

from .config import ModelConfig


def kv_bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers, keys and values, in bytes."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size * dtype.itemsize


class PagedCache:
    """Keys and values of all layers. Which block belongs to which sequence is the caller's business."""

    def __init__(self, config: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a cache of {num_blocks} blocks of {block_size} tokens can't hold anything")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        # Zeroed, not empty: padding reads blocks that were never written, and 0 weight x NaN would still be NaN.
        self.blocks = torch.zeros(
            (config.num_layers, num_blocks, 2, config.num_kv_heads, block_size, config.head_dim), dtype=dtype
        )
        self._token_rows = self.blocks.view(config.num_layers, -1, config.head_dim).unbind(0)
        self._run_rows = self.blocks.view(config.num_layers, -1, block_size * config.head_dim).unbind(0)
        self._head_of_run = torch.arange(config.num_kv_heads)

    def write_index(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Where tokens go that lie at `offsets` [n] of `blocks` [n]; for `write`, the same in every layer."""
        kv_heads = torch.arange(2 * self.num_kv_heads)
        return ((blocks.unsqueeze(1) * len(kv_heads) + kv_heads) * self.block_size + offsets.unsqueeze(1)).flatten()

    def write(self, layer: int, index: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Store keys_values [n, 2 * num_kv_heads, head_dim]: a token's keys, then its values."""
        self._token_rows[layer].index_copy_(0, index, keys_values.reshape(-1, self.head_dim))

    def gather_index(self, tables: torch.Tensor) -> torch.Tensor:
        """What to read for block tables [n, num_blocks]; for `gather`, the same in every layer."""
        keys = tables.unsqueeze(1) * (2 * self.num_kv_heads) + self._head_of_run.unsqueeze(1)
        return torch.stack((keys, keys + self.num_kv_heads)).flatten()

    def gather(self, layer: int, index: torch.Tensor, num_sequences: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each contiguous [num_sequences, num_kv_heads, num_blocks * block_size, head_dim]."""
        runs = self._run_rows[layer].index_select(0, index)
        keys, values = runs.view(2, num_sequences, self.num_kv_heads, -1, self.head_dim).unbind(0)
        return keys, values
