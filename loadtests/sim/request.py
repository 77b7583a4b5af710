"""A request as the simulator knows it: what scheduling sees, and what only its end will show."""

from dataclasses import dataclass

from policies.types import Lane

MODEL = "model"


@dataclass(frozen=True, slots=True)
class SimRequest:
    """Implements `RequestLike`. `output_tokens` is the truth, hidden from policies that aren't an oracle's.

    `chunk_ids`: names of the prompt's prefix chunks; equal leading ids mean an equal prefix. `group`: under which its
    figures are reported. `priority`: what the engine is told, higher first.
    """

    index: int
    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    group: str = "all"
    tenant: str = "default"
    route: str = "chat"
    model: str = MODEL
    adapter: str | None = None
    feature: str | None = None
    declared_lane: Lane | None = None
    max_output_tokens: int | None = None
    num_choices: int = 1
    can_be_sliced: bool = False
    streams: bool = True
    deadline_s: float | None = None
    body_bytes: int = 0
    first_token_by_s: float | None = None
    priority: int = 0
    chunk_ids: tuple[int, ...] = ()
