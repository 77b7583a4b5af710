"""Attention over the paged cache: decodes in batches, prefill chunks one by one.

A step's tokens are one concatenated batch. `AttentionPlan` says once a step, for all layers, where its tokens are
written in the cache and what each part of the batch reads.
"""

import math
from dataclasses import dataclass

import torch

from .cache import PagedCache

QUERY_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Tokens start..end of the batch: one a sequence, each attending to its whole sequence, padded to the longest.

    mask [n * num_kv_heads, 1, context] is 0 where a position belongs to the sequence and -inf elsewhere.
    """

    start: int
    end: int
    gather_index: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens start..end of the batch, all of one sequence: each attends to `prefix_tokens` of it and to the chunk's
    own tokens up to itself.
    """

    start: int
    end: int
    prefix_tokens: int
    gather_index: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What one step's attention does, the same in every layer.

    scratch [2, scores of one query block] is room for the prefill chunks' scores, reused over blocks and layers: fresh
    memory of that size would be faulted in page by page, which takes longer than the products. causal_mask
    [QUERY_BLOCK_TOKENS, QUERY_BLOCK_TOKENS] is -inf above the diagonal.
    """

    write_index: torch.Tensor
    decode_groups: tuple[DecodeGroup, ...]
    prefill_chunks: tuple[PrefillChunk, ...]
    scratch: torch.Tensor
    causal_mask: torch.Tensor


def attend(
    queries: torch.Tensor, keys_values: torch.Tensor, cache: PagedCache, layer: int, plan: AttentionPlan
) -> torch.Tensor:
    """Write this step's keys and values, then attend. Queries and keys are rotated already.

    queries [n, num_heads, head_dim] and keys_values [n, 2 * num_kv_heads, head_dim] → [n, num_heads, head_dim].
    """
    cache.write(layer, plan.write_index, keys_values)
    outputs = [_decode(queries, cache, layer, group) for group in plan.decode_groups]
    outputs += [_prefill(queries, cache, layer, chunk, plan) for chunk in plan.prefill_chunks]
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
    queries: torch.Tensor, cache: PagedCache, layer: int, chunk: PrefillChunk, plan: AttentionPlan
) -> torch.Tensor:
    # In blocks of queries, so that nothing beyond a block's own diagonal is computed and its scores stay in the
    # processor's cache. Written out for the same reason as above.
    num_heads, head_dim = queries.shape[1:]
    keys, values = (part.squeeze(0) for part in cache.gather(layer, chunk.gather_index, 1))
    heads = (
        queries[chunk.start : chunk.end].transpose(0, 1).view(cache.num_kv_heads, -1, chunk.end - chunk.start, head_dim)
    )
    attended = torch.empty_like(queries[chunk.start : chunk.end])
    for first in range(0, chunk.end - chunk.start, QUERY_BLOCK_TOKENS):
        block = heads[:, :, first : first + QUERY_BLOCK_TOKENS]
        num_queries = block.shape[2]
        context = chunk.prefix_tokens + first + num_queries
        shape = (cache.num_kv_heads, num_heads // cache.num_kv_heads * num_queries, context)
        scores, weights = (part[: math.prod(shape)].view(shape) for part in plan.scratch)
        torch.baddbmm(
            scores,
            block.reshape(*shape[:2], head_dim),
            keys[:, :context].transpose(1, 2),
            beta=0,
            alpha=head_dim**-0.5,
            out=scores,
        )
        diagonal = scores.view(num_heads, num_queries, context)[..., -num_queries:]
        diagonal.add_(plan.causal_mask[:num_queries, :num_queries])
        torch.softmax(scores, -1, out=weights)
        block_attended = torch.bmm(weights, values[:, :context]).view(num_heads, num_queries, head_dim)
        attended[first : first + num_queries] = block_attended.transpose(0, 1)
    return attended
