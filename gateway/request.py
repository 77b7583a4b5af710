"""A request as scheduling sees it."""

from typing import NamedTuple

from policies.types import Lane


class Request(NamedTuple):
    """Implements `policies.types.RequestLike`; see there for the meaning of each field."""

    request_id: str
    arrival_s: float
    model: str
    tenant: str
    route: str
    declared_lane: Lane | None
    prompt_tokens: int
    max_output_tokens: int | None
    streams: bool
    deadline_s: float | None
    num_choices: int = 1
    adapter: str | None = None
    feature: str | None = None
    body_bytes: int = 0
    first_token_by_s: float | None = None
    can_be_sliced: bool = False
