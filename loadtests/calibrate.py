"""What this machine can do, measured in the run that uses it: the cost of a token, and the capacity for a mix."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .answer import Answer
from .client import LoadClient
from .errors import TargetError
from .prompts import PromptMaker
from .scenario import Scenario
from .workload import Costs, PlannedRequest, stream_of_mix

_PREFILL_LENGTHS_TOKENS = (64, 640, 64, 640, 64, 640)
_DECODE_CLIENTS = 8
_DECODE_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a closed loop achieved: `work_per_s` in work seconds a second, over `window_s`."""

    work_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    num_clients: int
    window_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "work_per_s": self.work_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "prompt_tokens_per_s": self.prompt_tokens_per_s,
            "num_clients": self.num_clients,
            "window_s": self.window_s,
        }


async def measure_costs(client: LoadClient, maker: PromptMaker, key: str) -> Costs:
    """Fits the seconds of a prompt token and of an output token.

    Prompt: slope of the first-token time over the length, medians of one-token answers sent one at a time. Output:
    the median gap between chunks with 8 answers running together, shared by the 8. Raises `TargetError` where an
    answer fails or the slope is not positive.
    """
    times: dict[int, list[float]] = {}
    await _one(client, maker, _request(-1, _PREFILL_LENGTHS_TOKENS[-1], 4), f"{key}/warm")
    for index, length in enumerate(_PREFILL_LENGTHS_TOKENS):
        answer = await _one(client, maker, _request(index, length, 1), f"{key}/prefill")
        times.setdefault(answer.received_prompt_tokens, []).append(answer.ttft_s or 0.0)
    lengths = sorted(times)
    medians = [float(np.median(times[length])) for length in lengths]
    prompt_token_s = float(np.polyfit(lengths, medians, 1)[0])
    batch = [_request(index, _PREFILL_LENGTHS_TOKENS[0], _DECODE_TOKENS) for index in range(_DECODE_CLIENTS)]
    answers = await client.closed_loop(
        batch, lambda request: maker.messages(request, f"{key}/decode"), num_clients=_DECODE_CLIENTS
    )
    _all_ok(client, answers)
    # While all of them decode: between the last first token and the first end.
    from_s = max(answer.chunk_s[0] for answer in answers)
    gaps = [b - a for answer in answers for a, b in pairwise(answer.chunk_s) if a >= from_s]
    output_token_s = float(np.median(gaps)) / _DECODE_CLIENTS if gaps else 0.0
    if prompt_token_s <= 0.0 or output_token_s <= 0.0:
        raise TargetError(f"{client.url}: no cost could be fitted (times {medians} s for {lengths} tokens)")
    return Costs(prompt_token_s, output_token_s)


async def measure_capacity(
    client: LoadClient,
    maker: PromptMaker,
    scenario: Scenario,
    costs: Costs,
    *,
    key: str,
    num_clients: int = 16,
    duration_s: float = 30.0,
) -> Capacity:
    """Work that a closed loop of the same mix gets done a second, in the last 3/4 of `duration_s`.

    Prompt work counts when the first token comes, output work token by token, so what is cut at the end counts as
    far as it got. Raises `TargetError` where an answer fails.
    """
    start_s = time.monotonic()
    answers = await client.closed_loop(
        stream_of_mix(scenario, costs, seed=0),
        lambda request: maker.messages(request, f"{key}/capacity"),
        num_clients=num_clients,
        duration_s=duration_s,
    )
    _all_ok(client, [answer for answer in answers if answer.error != "run-ended"])
    return work_done(answers, costs, start_s + duration_s / 4.0, start_s + duration_s, num_clients)


def work_done(answers: Sequence[Answer], costs: Costs, from_s: float, to_s: float, num_clients: int) -> Capacity:
    """Tokens and work between two instants. Raises `TargetError` where nothing was done."""
    prompt_tokens = sum(
        answer.received_prompt_tokens for answer in answers if answer.chunk_s and from_s < answer.chunk_s[0] <= to_s
    )
    output_tokens = sum(from_s < instant_s <= to_s for answer in answers for instant_s in answer.chunk_s)
    window_s = to_s - from_s
    work_s = costs.work_s(prompt_tokens, output_tokens)
    if work_s <= 0.0:
        raise TargetError("nothing was answered while capacity was measured")
    return Capacity(work_s / window_s, output_tokens / window_s, prompt_tokens / window_s, num_clients, window_s)


async def _one(client: LoadClient, maker: PromptMaker, request: PlannedRequest, key: str) -> Answer:
    answer = await client.send(request, maker.messages(request, key))
    _all_ok(client, [answer])
    return answer


def _all_ok(client: LoadClient, answers: Sequence[Answer]) -> None:
    for answer in answers:
        if not answer.is_ok:
            raise TargetError(f"{client.url}: a request failed while the machine was measured: {answer.error}")


def _request(index: int, prompt_tokens: int, output_tokens: int) -> PlannedRequest:
    return PlannedRequest(index, "calibration", 0.0, prompt_tokens, output_tokens)
