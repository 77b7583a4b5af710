"""What the gateway says about where the time went, held against the client's own clock."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .answer import Answer
from .client import LoadClient

_PARALLEL_READS = 8


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """Shares in 0..1 of requests: with a record, with a small `other`, with a total that fits the client's clock."""

    num_requests: int
    found_ratio: float
    small_other_ratio: float
    total_agrees_ratio: float
    worst_other_ms: float
    worst_total_gap_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "num_requests": self.num_requests,
            "found_ratio": self.found_ratio,
            "small_other_ratio": self.small_other_ratio,
            "total_agrees_ratio": self.total_agrees_ratio,
            "worst_other_ms": self.worst_other_ms,
            "worst_total_gap_ms": self.worst_total_gap_ms,
        }


async def read_records(client: LoadClient, answers: Sequence[Answer]) -> dict[int, dict[str, Any]]:
    """The gateway's timing record of each complete answer, by the answer's index; those it lost are left out."""
    records: dict[int, dict[str, Any]] = {}
    gate = asyncio.Semaphore(_PARALLEL_READS)

    async def read(answer: Answer) -> None:
        request_id = answer.headers.get("x-tailgate-request-id")
        if request_id is None:
            return
        async with gate:
            status, body = await client.get(f"/v1/requests/{request_id}/timing")
        if status == 200:
            records[answer.index] = json.loads(body)

    await asyncio.gather(*(read(answer) for answer in answers if answer.is_ok))
    return records


def check_layers(answers: Sequence[Answer], records: dict[int, dict[str, Any]]) -> LayerCheck:
    """Counts requests whose `other` is at most 1 % or 1 ms, and whose total is within 2 % or 5 ms of the client's.

    A complete answer without a record counts as a miss everywhere.
    """
    complete = [answer for answer in answers if answer.is_ok]
    others: list[tuple[float, float]] = []
    gaps: list[tuple[float, float]] = []
    for answer in complete:
        record = records.get(answer.index)
        if record is None:
            continue
        total_ms = float(record["total_ms"])
        client_ms = (answer.e2e_s or 0.0) * 1e3
        others.append((float(record["layers_ms"].get("other", 0.0)), max(1.0, 0.01 * total_ms)))
        gaps.append((abs(total_ms - client_ms), max(5.0, 0.02 * client_ms)))
    count = max(1, len(complete))
    return LayerCheck(
        num_requests=len(complete),
        found_ratio=len(others) / count,
        small_other_ratio=sum(value <= limit for value, limit in others) / count,
        total_agrees_ratio=sum(value <= limit for value, limit in gaps) / count,
        worst_other_ms=max((value for value, _ in others), default=0.0),
        worst_total_gap_ms=max((value for value, _ in gaps), default=0.0),
    )


def example_that_waited(answers: Sequence[Answer], records: dict[int, dict[str, Any]], lane: str) -> dict[str, Any]:
    """The record of the request of a lane with the median wait in the gateway's queue among those that waited."""
    waits = sorted(
        (records[answer.index]["layers_ms"].get("queue", 0.0), answer.index)
        for answer in answers
        if answer.lane == lane and answer.index in records
    )
    waited = [pair for pair in waits if pair[0] >= 10.0] or waits[-1:]
    return records[waited[len(waited) // 2][1]] if waited else {}
