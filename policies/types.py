"""The nouns that every decision is made of.

Views (`RequestLike`, `ReplicaLike`, `SequenceLike`, `EngineLike`) are read-only: policies never write to what they
are shown and keep no view between calls. Effects (`Call`, `StopCall`, `Evict`, `WantCapacity`, `Notice`, `StepPlan`)
are data: whoever runs the policies performs them. Instants and durations are float seconds of one monotonic clock,
given in as arguments; unset is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

# What is asked for the members of these for every request keeps them under names of its own: to find one by its class
# takes Python 3.11 a thousand instructions.


class Lane(StrEnum):
    """A bucket of the weighted token budget; see `lanes.py` for how a request gets into one."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    LONG = "long"
    OVERLONG = "overlong"
    BACKGROUND = "background"


DECLARABLE_LANES = (Lane.INTERACTIVE, Lane.STANDARD, Lane.LONG, Lane.BACKGROUND)
"""Those that a caller may ask for, best first."""


class Reason(StrEnum):
    """Why a request waits, was turned away or had to leave. Stable: shown in headers, metrics and logs."""

    CAPACITY = "capacity"
    LANE = "lane"
    NO_REPLICA = "no-replica"
    QUEUE_FULL = "queue-full"
    QUEUE_TIMEOUT = "queue-timeout"
    DEADLINE = "deadline"
    OVERLOAD = "overload"
    UNKNOWN_MODEL = "unknown-model"
    DRAINING = "draining"


class Outcome(StrEnum):
    """How a call ended, in the words of a limiter that learns from it (Netflix concurrency-limits).

    SUCCESS and DROPPED carry information about the replica; IGNORED (client left, 4xx, stopped by us) does not.
    """

    SUCCESS = "success"
    IGNORED = "ignored"
    DROPPED = "dropped"


class RequestLike(Protocol):
    """A request as scheduling sees it."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrival_s(self) -> float: ...
    @property
    def model(self) -> str: ...
    @property
    def adapter(self) -> str | None: ...
    @property
    def feature(self) -> str | None:
        """What the replica must be able to do, such as an API it must speak; None: any will do."""
        ...

    @property
    def tenant(self) -> str: ...
    @property
    def route(self) -> str:
        """Kind of call, a small set: "chat", "completions"."""
        ...

    @property
    def declared_lane(self) -> Lane | None:
        """What the caller asked for and may ask for; None leaves it to the token budget."""
        ...

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def max_output_tokens(self) -> int | None:
        """The caller's own bound, over all choices; None when the caller set none."""
        ...

    @property
    def num_choices(self) -> int:
        """Answers it will generate side by side, over all its prompts; at least 1."""
        ...

    @property
    def streams(self) -> bool:
        """Whether the shell will report `first_token`; without it the end of the prefill is estimated."""
        ...

    @property
    def can_be_sliced(self) -> bool:
        """Whether the first part of its prompt can be computed by a call of its own, so that it lies in the cache."""
        ...

    @property
    def deadline_s(self) -> float | None:
        """Instant by which the request must have been dispatched; past it the core evicts it (QUEUE_TIMEOUT).

        No later than `first_token_by_s`, where that is set.
        """
        ...

    @property
    def first_token_by_s(self) -> float | None:
        """Instant by which the caller wants its first token; None: it said nothing. Evicted then: DEADLINE."""
        ...

    @property
    def body_bytes(self) -> int:
        """What the shell keeps in memory of it while it waits; 0 where there is nothing."""
        ...


class ReplicaLike(Protocol):
    """An upstream server as scheduling sees it."""

    @property
    def replica_id(self) -> str: ...
    @property
    def models(self) -> frozenset[str]:
        """Model and adapter names it serves."""
        ...

    @property
    def features(self) -> frozenset[str]:
        """What it can do; see `RequestLike.feature`."""
        ...

    @property
    def is_available(self) -> bool:
        """Whether new calls may be sent: probed healthy, not ejected, not draining."""
        ...

    @property
    def max_in_flight_tokens(self) -> int | None:
        """Cap of prompt + predicted output tokens of its calls; None leaves it to the admission policy."""
        ...

    @property
    def kv_capacity_tokens(self) -> int | None:
        """What its KV cache holds, which no admission policy's cap exceeds; None: unknown."""
        ...

    @property
    def max_in_flight_requests(self) -> int | None:
        """Cap of its calls, such as an engine's largest batch; None: tokens alone decide."""
        ...

    @property
    def max_prefill_tokens(self) -> int | None:
        """No further call starts while this many prompt tokens wait for their first token; None: no such bound."""
        ...

    @property
    def slice_block_tokens(self) -> int | None:
        """Tokens in a block of its prefix cache, where that was seen to work; None: prompts go there whole."""
        ...


class Sample(NamedTuple):
    """What a finished call taught: token counts and seconds; None where the replica didn't say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    upstream_ttft_s: float | None = None
    tpot_s: float | None = None


class Call(NamedTuple):
    """Send this request to this replica now. `slice_end_tokens` None: whole; else the prompt's first so many tokens."""

    call_id: int
    request: RequestLike
    replica_id: str
    slice_end_tokens: int | None
    lane: Lane
    why: str
    """How the replica was chosen."""
    waited_for: Reason | None
    """What held it back: CAPACITY, LANE (somebody who came later went first), NO_REPLICA; None: it didn't wait."""


@dataclass(frozen=True, slots=True)
class StopCall:
    """Close the connection of this running prefill; the request goes on later, in slices."""

    call_id: int
    request_id: str
    replica_id: str


@dataclass(frozen=True, slots=True)
class Evict:
    """This request left the queue undispatched."""

    request_id: str
    reason: Reason
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class WantCapacity:
    """The head of the queue needs more than what was granted on this replica: ask for `tokens` in all."""

    replica_id: str
    tokens: int
    head_key: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Nothing to do but to tell the operator: how decisions are made has changed. `error`: what made it change."""

    text: str
    error: Exception | None = None


Effect = Call | StopCall | Evict | WantCapacity | Notice


class SequenceLike(Protocol):
    """A sequence inside the engine. Token counts are of this sequence alone."""

    @property
    def sequence_id(self) -> int: ...
    @property
    def arrival_s(self) -> float: ...
    @property
    def priority(self) -> int:
        """Higher goes first."""
        ...

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int:
        """Prompt plus generated so far."""
        ...

    @property
    def computed_tokens(self) -> int:
        """Tokens whose keys and values are in the cache. A decode has `num_tokens - computed_tokens == 1`."""
        ...

    @property
    def held_blocks(self) -> int:
        """KV blocks its table holds."""
        ...

    @property
    def exclusive_blocks(self) -> int:
        """Of those, the ones no other sequence holds: preempting it frees at least so many."""
        ...

    @property
    def cached_tokens(self) -> int:
        """While waiting: tokens that the prefix cache would supply; 0 once running."""
        ...

    @property
    def cached_idle_blocks(self) -> int:
        """While waiting: how many of those cached blocks nobody holds, so that taking them uses up free blocks."""
        ...


class EngineLike(Protocol):
    """The engine's state at the start of a step. Both lists are in arrival order."""

    @property
    def now_s(self) -> float:
        """When the step begins, by the clock of `SequenceLike.arrival_s`."""
        ...

    @property
    def running(self) -> Sequence[SequenceLike]: ...
    @property
    def waiting(self) -> Sequence[SequenceLike]: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, those with cached content included."""
        ...


@dataclass(frozen=True, slots=True)
class StepRow:
    """Compute the next `num_tokens` tokens of this sequence (1 for a decode)."""

    sequence_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one engine step computes.

    `preempt` is applied first: those sequences give back all their blocks and wait again, to be recomputed. Then the
    rows run together. Rules: the tokens of the rows sum to at most `max_num_batched_tokens`; running sequences after
    the step number at most `max_num_seqs`; the new blocks fit the free ones; an id is in one list, once.
    """

    rows: tuple[StepRow, ...] = ()
    preempt: tuple[int, ...] = field(default=())
