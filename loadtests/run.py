"""One plan against one server: warm-up, open loop, answers."""

from collections.abc import Callable
from dataclasses import dataclass

from .answer import Answer
from .client import LoadClient, Messages
from .prompts import PromptMaker
from .workload import Plan, PlannedRequest

_WARM_UP_REQUESTS = 4
_DRAIN_LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class Side:
    """What one server answered to a plan. `origin_s` is the first scheduled instant, on the client's clock."""

    name: str
    url: str
    answers: tuple[Answer, ...]
    origin_s: float


async def run_plan(
    name: str,
    client: LoadClient,
    maker: PromptMaker,
    plan: Plan,
    *,
    key: str,
    on_end: Callable[[Answer], None] | None = None,
    make_messages: Callable[[PlannedRequest], Messages] | None = None,
) -> Side:
    """Sends a plan once, after a few warm-up requests that open connections and are not counted.

    `key` decides the words of the prompts: two sides of a comparison get different keys, so that the second finds
    nothing of the first in a prefix cache; `make_messages` takes their place. Ends at the
    latest 240 s after the last arrival.
    """
    for index in range(_WARM_UP_REQUESTS):
        warm = PlannedRequest(index, "warm-up", 0.0, 48, 4)
        await client.send(warm, maker.messages(warm, f"{key}/warm-up"))
    answers = await client.open_loop(
        plan.requests,
        make_messages or (lambda request: maker.messages(request, key)),
        limit_s=plan.duration_s + _DRAIN_LIMIT_S,
        on_end=on_end,
    )
    origin_s = min((answer.scheduled_s for answer in answers), default=0.0)
    return Side(name, client.url, tuple(answers), origin_s)
