"""Short requests beside long prompts, three ways: straight to an engine, through a gateway that sends every prompt
whole, and through one that cuts long ones into slices. The ways take turns within each round, so that a busy machine
hurts all alike; figures are medians over the rounds.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from .answer import Answer
from .calibrate import measure_costs
from .client import LoadClient
from .compare import OnStep
from .errors import TargetError
from .processes import gateway
from .prompts import PromptMaker
from .workload import PlannedRequest

WAYS = ("direct", "whole", "slices")
SHORT_TOKENS = 64
_SHORT_EVERY_S = 0.5
_SHORT_OUTPUT_TOKENS = 4
_LONG_OUTPUT_TOKENS = 4
_LIMIT_S = 300.0
_PAUSE_S = 1.0
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
        },
    }
]


@dataclass(frozen=True, slots=True)
class Scene:
    """Long prompts that come at once, each of a share of the longest; short ones begin `first_short_s` later, None:
    there are none."""

    name: str
    num_long: int
    share: float
    first_short_s: float | None


SCENES = (
    Scene("one", 1, 1.0, 0.2),
    Scene("late", 1, 1.0, 3.0),
    Scene("three", 3, 0.5, 0.2),
    Scene("alone", 1, 1.0, None),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One scene, one way, once: times to the first token."""

    short_ttft_s: tuple[float, ...]
    long_ttft_s: tuple[float, ...]
    cached_ratio: float | None
    """Of the long prompts, what the engine took from its cache at last; None where it doesn't say."""

    @property
    def short_median_s(self) -> float:
        return median(self.short_ttft_s)

    @property
    def short_worst_s(self) -> float:
        return max(self.short_ttft_s)

    @property
    def last_long_s(self) -> float:
        return max(self.long_ttft_s)


Rounds = dict[str, dict[str, list[Seen]]]
"""Scene → way → a round each."""


@asynccontextmanager
async def three_ways(engine_url: str, model: str) -> AsyncIterator[dict[str, LoadClient]]:
    """A client for each way; the gateways are started, with what a token costs there, and ended."""
    async with AsyncExitStack() as stack:
        direct = await stack.enter_async_context(LoadClient(engine_url, model))
        costs = await measure_costs(direct, await PromptMaker.calibrate(direct), secrets.token_hex(8))
        clients = {"direct": direct}
        for way in WAYS[1:]:
            config = {
                "replicas": [{"url": engine_url}],
                "policy": {
                    "slicing": way,
                    "options": {
                        "cost": {
                            "prefill_s_per_token": costs.prompt_token_s,
                            "decode_s_per_token": costs.output_token_s,
                        }
                    },
                },
            }
            url = await stack.enter_async_context(gateway(config))
            clients[way] = await stack.enter_async_context(LoadClient(url, model))
        yield clients


async def measure_slices(
    clients: Mapping[str, LoadClient],
    *,
    long_tokens: int,
    num_rounds: int,
    scenes: Sequence[Scene] = SCENES,
    with_tools: bool = True,
    on_step: OnStep,
) -> Rounds:
    """Every scene each way, `num_rounds` times. Raises `TargetError` where an answer fails."""
    maker = await PromptMaker.calibrate(clients["direct"])
    run = secrets.token_hex(8)  # an engine that runs on has the prompts of earlier runs in its cache
    found: Rounds = {scene.name: {way: [] for way in clients} for scene in scenes}
    for number in range(num_rounds):
        for scene in scenes:
            for way, client in clients.items():
                on_step(f"round {number + 1} of {num_rounds}: {scene.name}, {way}", None)
                key = f"{run}/{number}/{scene.name}/{way}"
                found[scene.name][way].append(await _play(client, maker, scene, long_tokens, key, with_tools))
                await asyncio.sleep(_PAUSE_S)  # what one way leaves behind isn't the next one's
    return found


async def _play(
    client: LoadClient, maker: PromptMaker, scene: Scene, long_tokens: int, key: str, with_tools: bool
) -> Seen:
    # Not to be called: a stock server refuses to leave the choice to the model.
    fields = {"tools": _TOOLS, "tool_choice": "none"} if with_tools else {}

    async def send(index: int, lane: str, prompt_tokens: int, output_tokens: int) -> Answer:
        request = PlannedRequest(index, lane, 0.0, prompt_tokens, output_tokens)
        answer = await client.send(request, maker.messages(request, f"{key}/{lane}"), fields=fields)
        if not answer.is_ok:
            raise TargetError(f"{client.url}: a {lane} request failed ({answer.error})")
        return answer

    prompt_tokens = int(long_tokens * scene.share)
    short: list[asyncio.Task[Answer]] = []
    try:
        async with asyncio.timeout(_LIMIT_S), asyncio.TaskGroup() as group:
            long = [
                group.create_task(send(index, "long", prompt_tokens, _LONG_OUTPUT_TOKENS))
                for index in range(scene.num_long)
            ]
            if scene.first_short_s is not None:
                await asyncio.sleep(scene.first_short_s)
                while not all(task.done() for task in long):
                    short.append(group.create_task(send(len(short), "short", SHORT_TOKENS, _SHORT_OUTPUT_TOKENS)))
                    await asyncio.wait(long, timeout=_SHORT_EVERY_S, return_when=asyncio.ALL_COMPLETED)
    except* TargetError as failures:
        raise failures.exceptions[0] from None
    except* TimeoutError:
        raise TargetError(f"{client.url}: {scene.name} took longer than {_LIMIT_S:g} s") from None
    return Seen(
        short_ttft_s=tuple(_ttft_s(task.result()) for task in short),
        long_ttft_s=tuple(_ttft_s(task.result()) for task in long),
        cached_ratio=_cached_ratio([task.result() for task in long]),
    )


def _ttft_s(answer: Answer) -> float:
    assert answer.ttft_s is not None  # it was looked at when it ended
    return answer.ttft_s


def _cached_ratio(answers: Sequence[Answer]) -> float | None:
    ratios: list[float] = []
    for answer in answers:
        details = (answer.usage or {}).get("prompt_tokens_details")
        if not isinstance(details, dict) or not isinstance(details.get("cached_tokens"), int):
            return None
        ratios.append(details["cached_tokens"] / answer.received_prompt_tokens)
    return min(ratios)


def print_slices(rounds: Rounds, console: Console) -> None:
    """Medians over the rounds, a row for each scene and way."""
    table = Table("scene", "way", "short median s", "short worst s", "last long s", title="time to the first token")
    for scene, ways in rounds.items():
        for way, seen in ways.items():
            short = [f"{median(pick):.3f}" for pick in _of_shorts(seen)] if seen[0].short_ttft_s else ["", ""]
            table.add_row(scene, way, *short, f"{median(one.last_long_s for one in seen):.2f}")
    console.print(table)


def _of_shorts(seen: Sequence[Seen]) -> tuple[list[float], list[float]]:
    return [one.short_median_s for one in seen], [one.short_worst_s for one in seen]


def to_dict(rounds: Rounds) -> dict[str, Any]:
    """Plain values, every round."""
    return {
        scene: {
            way: [
                {
                    "short_ttft_s": one.short_ttft_s,
                    "long_ttft_s": one.long_ttft_s,
                    "cached_ratio": one.cached_ratio,
                }
                for one in seen
            ]
            for way, seen in ways.items()
        }
        for scene, ways in rounds.items()
    }
