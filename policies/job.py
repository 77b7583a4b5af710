"""What `DispatchCore` keeps about one request."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from .fairness.flows import FlowKey
from .fairness.port import LaneTurns
from .lifecycle import Event, State, after
from .shedding.port import ADMIT, Ruling
from .types import Lane, RequestLike

# For every request: see `policies.types`.
_WAITING: Final = State.WAITING
_STANDARD: Final = Lane.STANDARD


class PoolKey(NamedTuple):
    """Which replicas a request can use. Those with the same key can use the same, so they don't pass each other."""

    model: str
    adapter: str | None
    feature: str | None
    excluded: frozenset[str]
    """Replicas that it must not be sent to again."""
    is_long: bool = False
    """Whether its prompt may go in slices: of such, a replica takes one at a time."""


@dataclass(slots=True)
class RunningCall:
    """A call that holds a slot."""

    call_id: int
    replica_id: str
    slot_tokens: int
    prefill_tokens: int  # counted against the replica's prefill bound; 0 once the first token came
    slice_end_tokens: int | None
    ahead_tokens: int = 0  # prompt tokens to be computed there until its first token, its own included
    num_beside: int = 1  # calls on the replica when it began, itself included
    began_s: float = 0.0
    computed_before_tokens: int = 0  # prompt tokens that the replica had computed when this call's prompt was done


@dataclass(slots=True)
class LongPrompt:
    """What is kept of a request whose prompt may go in slices."""

    since_s: float = 0.0  # since its present call runs, or it is parked
    num_slices: int = 0
    may_be_stopped: bool = True  # a slice ended since it was stopped last: never twice without progress
    goes_whole: bool = False  # the replica didn't take a slice of it


class Job:
    """One request from `offer` to its end. Identity is the object; `seq` breaks ties in order of arrival."""

    __slots__ = (
        "budget_tokens",
        "call",
        "charged_s",
        "charged_to",
        "computed_tokens",
        "cost_s",
        "flow",
        "is_late",
        "key",
        "lane",
        "lane_why",
        "long",
        "output_tokens",
        "own_lane",
        "pool",
        "predicted_output_tokens",
        "request",
        "ruling",
        "seq",
        "start_by_s",
        "state",
        "ticket",
    )

    def __init__(self, request: RequestLike, seq: int) -> None:
        self.request = request
        self.seq = seq
        self.state = _WAITING
        self.ticket = 0  # which of its entries in the queue's heaps is the live one
        self.flow: FlowKey = ("", "")
        self.lane = self.own_lane = _STANDARD  # the second: by size or declaration, whatever overload makes of it
        self.lane_why = ""
        self.ruling: Ruling = ADMIT  # what is to become of it under overload
        self.cost_s = 0.0
        self.budget_tokens = 0.0
        self.predicted_output_tokens = 0
        self.key = 0.0
        self.is_late = False  # it can't be in time any more, and was put behind others
        self.start_by_s = float("inf")  # to be in time, where the ordering cares
        self.pool = PoolKey(request.model, request.adapter, request.feature, frozenset())
        self.long: LongPrompt | None = None
        self.call: RunningCall | None = None
        self.charged_to: LaneTurns | None = None
        self.charged_s = 0.0
        self.computed_tokens = 0  # of the prompt, by earlier slices
        self.output_tokens = 0

    def exclude(self, replica_ids: Iterable[str]) -> None:
        """Not to be sent to these any more. Only while it isn't in the queue, which knows it by its pool."""
        self.pool = self.pool._replace(excluded=self.pool.excluded.union(replica_ids))

    def set_long(self, is_long: bool) -> None:
        """Whether its prompt may go in slices. Only while it isn't in the queue."""
        if is_long != (self.long is not None):
            self.long = LongPrompt() if is_long else None
            self.pool = self.pool._replace(is_long=is_long)

    @property
    def slot_tokens(self) -> int:
        """Prompt + output tokens it is expected to keep in the replica's memory."""
        predicted_tokens, output_tokens = self.predicted_output_tokens, self.output_tokens
        return self.request.prompt_tokens + (predicted_tokens if predicted_tokens > output_tokens else output_tokens)

    def move(self, event: Event) -> None:
        self.state = after(self.state, event)
