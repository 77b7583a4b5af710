"""Attention over the paged cache: decodes in batches, prefill chunks one by one.

A step's tokens are one concatenated batch. `AttentionPlan` says once a step, for all layers, where its tokens are
written in the cache and what each part of the batch reads.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from .cache import PagedCache


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Tokens start..end of the batch: one a sequence, each attending to its whole sequence, padded to the longest.

    mask [n * num_kv_heads, 1, context] is 0 where a position belongs to the sequence and -inf elsewhere; None when
    all of them fill their blocks.
    """

    start: int
    end: int
    gather_index: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens start..end of the batch, all of one sequence, after `prefix_tokens` that are in the cache.

    Without a prefix, its keys and values are those just computed and gather_index and mask are None. Otherwise mask
    [1, 1, num_queries_per_kv * n, context] is causal.
    """

    start: int
    end: int
    gather_index: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What one step's attention does, the same in every layer."""

    write_index: torch.Tensor
    decode_groups: tuple[DecodeGroup, ...]
    prefill_chunks: tuple[PrefillChunk, ...]


def attend(
    queries: torch.Tensor, keys_values: torch.Tensor, cache: PagedCache, layer: int, plan: AttentionPlan
) -> torch.Tensor:
    """Write this step's keys and values, then attend. Queries and keys are rotated already.

    queries [n, num_heads, head_dim] and keys_values [n, 2 * num_kv_heads, head_dim] → [n, num_heads, head_dim].
    """
    cache.write(layer, plan.write_index, keys_values)
    outputs = [_decode(queries, cache, layer, group) for group in plan.decode_groups]
    outputs += [_prefill(queries, keys_values, cache, layer, chunk) for chunk in plan.prefill_chunks]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _decode(queries: torch.Tensor, cache: PagedCache, layer: int, group: DecodeGroup) -> torch.Tensor:
    # The query heads that share a key/value head are the rows of one small matrix: keys are never repeated. Written
    # out as two batched products, which on CPUs take half the time of scaled_dot_product_attention at these shapes.
    num_sequences = group.end - group.start
    num_heads, head_dim = queries.shape[1:]
    keys, values = cache.gather(layer, group.gather_index, num_sequences)
    queries = queries[group.start : group.end].reshape(num_sequences * cache.num_kv_heads, -1, head_dim)
    scores = torch.baddbmm(group.mask, queries, keys.flatten(0, 1).transpose(1, 2), alpha=head_dim**-0.5)
    return torch.bmm(scores.softmax(-1), values.flatten(0, 1)).view(num_sequences, num_heads, head_dim)


def _prefill(
    queries: torch.Tensor, keys_values: torch.Tensor, cache: PagedCache, layer: int, chunk: PrefillChunk
) -> torch.Tensor:
    num_tokens = chunk.end - chunk.start
    num_heads, head_dim = queries.shape[1:]
    heads = queries[chunk.start : chunk.end].transpose(0, 1)
    if chunk.gather_index is None:
        fresh = keys_values[chunk.start : chunk.end].transpose(0, 1).unsqueeze(0)
        keys, values = torch.split(fresh, cache.num_kv_heads, dim=1)
        attended = functional.scaled_dot_product_attention(
            heads.unsqueeze(0), keys, values, is_causal=True, enable_gqa=True
        )
    else:
        keys, values = cache.gather(layer, chunk.gather_index, 1)
        grouped = heads.reshape(1, cache.num_kv_heads, -1, head_dim)
        attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=chunk.mask)
    return attended.view(num_heads, num_tokens, head_dim).transpose(0, 1)
