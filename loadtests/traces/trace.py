"""What a trace is, whatever file it came from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceError


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival; all arrays have shape [num_requests].

    `arrival_s` counts from the first request and is None where the format has no arrivals. `tenant` holds small
    integers, None where the format has none. `block_ids[i]` are the prefix blocks of request i: one id per
    `block_tokens` tokens, equal leading ids mean an equal prefix.
    """

    format: str
    arrival_s: NDArray[np.float64] | None
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    tenant: NDArray[np.int64] | None = None
    block_ids: tuple[tuple[int, ...], ...] | None = None
    block_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)


def make_trace(
    path: Path,
    name: str,
    arrivals: Sequence[float] | None,
    prompts: Sequence[int],
    outputs: Sequence[int],
    tenants: Sequence[str] | None = None,
    blocks: Sequence[tuple[int, ...]] | None = None,
    block_tokens: int | None = None,
) -> Trace:
    """Rows in any order → a trace; tenants are numbered as they come. Raises `TraceError` without any row."""
    if not prompts:
        raise TraceError(str(path), 1, None, "the file has no requests")
    order = np.arange(len(prompts)) if arrivals is None else np.argsort(np.asarray(arrivals), kind="stable")
    arrival_s = None
    if arrivals is not None:
        arrival_s = np.asarray(arrivals, dtype=np.float64)[order]
        arrival_s = arrival_s - arrival_s[0]
    tenant = None
    if tenants is not None:
        number = {name: index for index, name in enumerate(dict.fromkeys(tenants))}
        tenant = np.asarray([number[value] for value in tenants], dtype=np.int64)[order]
    return Trace(
        format=name,
        arrival_s=arrival_s,
        prompt_tokens=np.asarray(prompts, dtype=np.int64)[order],
        output_tokens=np.asarray(outputs, dtype=np.int64)[order],
        tenant=tenant,
        block_ids=None if blocks is None else tuple(blocks[index] for index in order),
        block_tokens=None if blocks is None else block_tokens,
    )
