"""Virtual token counters (Sheng et al., OSDI 2024): the flow that was served least goes first."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping

from ..types import RequestLike
from .flows import FlowKey

_MIN_SWEEP = 1024


class VirtualTokenCounters:
    """A counter for each flow: prompt tokens at dispatch, output tokens as they come, weighted. The smallest goes.

    A flow that wakes is lifted to `burst_tokens` below where the flows of its model stand, which is the counter of the
    one that was served last. So nobody saves up more turns than that while idle, whoever sends less than others goes
    before them though its requests come in bursts, and nobody is punished for having had a replica alone.

    Between two flows of a model that both wait all the time, served tokens (weighted) differ by at most
    2 · max(input_weight · longest prompt, output_weight · tokens in flight) + burst_tokens.
    """

    name = "vtc"

    def __init__(self, *, input_weight: float, output_weight: float, burst_tokens: float = 0.0) -> None:
        """What a prompt token and an output token count, above 0; what a flow may save up, in tokens counted so."""
        self._burst_tokens = burst_tokens
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._counters: dict[FlowKey, float] = {}
        self._floors: dict[str, float] = {}  # by model: the counter that was served last, before it was charged
        self._sweep_at = _MIN_SWEEP
        self._standings: _Standings | None = None  # kept while several flows wait, from the first time it matters

    def key(self, request: RequestLike) -> FlowKey:
        return (request.tenant, request.model)

    def woke(self, flow: FlowKey, waiting: Collection[FlowKey]) -> None:
        counters = self._counters
        floor = self._floors.get(flow[1], 0.0) - self._burst_tokens
        if counters.get(flow, 0.0) < floor:
            counters[flow] = floor
        if self._standings is not None:
            if waiting:
                self._standings.woke(flow)
            else:
                self._standings = None
        if len(counters) > self._sweep_at:
            self._sweep(waiting)

    def in_order(self, waiting: Collection[FlowKey]) -> Iterable[FlowKey]:
        if len(waiting) < 2:
            return waiting
        if self._standings is None:
            self._standings = _Standings(waiting)
        return self._standings.ascending(waiting, self._counters)

    def charge(self, flow: FlowKey, prompt_tokens: int, output_tokens: int) -> None:
        if self._standings is not None:
            self._standings.stale.add(flow)
        counter = self._counters.get(flow, 0.0)
        if not prompt_tokens:
            self._counters[flow] = counter + self._output_weight * output_tokens
            return
        if counter > self._floors.get(flow[1], 0.0):
            self._floors[flow[1]] = counter
        self._counters[flow] = counter + self._input_weight * prompt_tokens + self._output_weight * output_tokens

    def _sweep(self, waiting: Collection[FlowKey]) -> None:
        """Forget who would be lifted on waking anyway: memory follows the flows that matter."""
        self._counters = {
            flow: counter
            for flow, counter in self._counters.items()
            if flow in waiting or counter > self._floors.get(flow[1], 0.0) - self._burst_tokens
        }
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self._counters))


class _Standings:
    """Waiting flows by counter, of equals the one that woke first: kept, for a thousand flows are too many to be sorted
    at each decision. Whose counter changed is put in its place when the next question comes."""

    def __init__(self, waiting: Collection[FlowKey]) -> None:
        """`waiting` in order of waking."""
        self.stale = set(waiting)
        self._woke_as = {flow: number for number, flow in enumerate(waiting)}
        self._num_wakes = len(waiting)
        self._entries: dict[FlowKey, tuple[float, int, FlowKey]] = {}
        self._sorted: list[tuple[float, int, FlowKey]] = []

    def woke(self, flow: FlowKey) -> None:
        self._woke_as[flow] = self._num_wakes
        self._num_wakes += 1
        self.stale.add(flow)

    def ascending(self, waiting: Collection[FlowKey], counters: Mapping[FlowKey, float]) -> Iterator[FlowKey]:
        """Lazily, since the first is nearly always the one."""
        for flow in self.stale:
            if (before := self._entries.pop(flow, None)) is not None:
                del self._sorted[bisect_left(self._sorted, before)]
            if flow in waiting:
                entry = self._entries[flow] = (counters.get(flow, 0.0), self._woke_as[flow], flow)
                insort(self._sorted, entry)
            else:
                self._woke_as.pop(flow, None)
        self.stale.clear()
        for _, _, flow in self._sorted:
            if flow in waiting:
                yield flow
            else:
                self.stale.add(flow)  # nobody said that it left
