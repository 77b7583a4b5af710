"""The port: whose turn it is among flows, each of which takes turns among its own lanes."""

from collections.abc import Collection, Iterable
from typing import Protocol

from ..types import RequestLike

FlowKey = tuple[str, str]
"""The unit of fairness: tenant and model."""


class FlowTurns(Protocol):
    """Orders the flows. Owns its own state (counters); told of everything it needs."""

    @property
    def name(self) -> str: ...

    def key(self, request: RequestLike) -> FlowKey:
        """The flow that a request belongs to, for as long as it waits."""
        ...

    def woke(self, flow: FlowKey, waiting: Collection[FlowKey]) -> None:
        """Nothing of this flow waited, and something will now. `waiting`: the flows that wait already."""
        ...

    def in_order(self, waiting: Collection[FlowKey]) -> Iterable[FlowKey]:
        """The flows that wait, whose turn it is first; the first of them that can go goes. Never empty.

        `waiting`: in order of waking; each was said to have woken, or waited when this was first asked.
        """
        ...

    def charge(self, flow: FlowKey, prompt_tokens: int, output_tokens: int) -> None:
        """A call of so many prompt tokens was dispatched, or so many further output tokens came."""
        ...


class OneFlow:
    """Everybody is in one flow: no fairness among tenants."""

    name = "one-flow"

    def key(self, request: RequestLike) -> FlowKey:
        return ("", "")

    def woke(self, flow: FlowKey, waiting: Collection[FlowKey]) -> None:
        """Nothing is kept."""

    def in_order(self, waiting: Collection[FlowKey]) -> Iterable[FlowKey]:
        return waiting

    def charge(self, flow: FlowKey, prompt_tokens: int, output_tokens: int) -> None:
        """Nothing is owed."""
