"""A simulated replica: an engine's step loop, with the composers of `policies.batching` inside."""

import bisect
from collections.abc import Sequence
from functools import partial

from policies.batching import Chunked, Composer, PolicyError, PrefillFirst, check_plan, fcfs
from policies.types import Call, StepPlan

from .events import Action, EventQueue, Phase
from .kv import KvPool
from .model import ReplicaModel
from .progress import PROGRESS_EVERY_TOKENS, Listener, tell_of_progress
from .request import SimRequest
from .sequence import SimSequence
from .steps import Rows, Run, decode_ends_s, mixed_end_s, num_equal_steps


class SimReplica:
    """Implements `EngineLike`.

    While all that runs decodes and nothing else could happen, many steps are one event: exactly the steps that would
    have been planned one by one (`is_stepwise` does that, and a test compares them).
    """

    def __init__(
        self,
        index: int,
        model: ReplicaModel,
        composer: Composer,
        events: EventQueue,
        *,
        network_s: float = 0.0,
        is_stepwise: bool = False,
    ) -> None:
        self.index = index
        self.model = model
        self.kv = KvPool(
            model.num_blocks,
            chunk_blocks=max(1, model.chunk_tokens // model.block_size),
            enable_prefix_caching=model.enable_prefix_caching,
        )
        self.now_s = 0.0
        """When the step that is planned began."""
        self.listeners: list[Listener] = []
        self.is_down = False
        self.num_steps = 0
        self.num_preempted = 0
        self.num_policy_errors = 0
        self.busy_s = 0.0
        self._composer = composer
        self._fallback = Chunked(fcfs)
        # What waits stays as it is while others decode: who starts is a matter of blocks and places for these two.
        # Another composer may look at the clock.
        self._may_decode_past_waiting = isinstance(composer, Chunked | PrefillFirst)
        self._events = events
        self._network_s = network_s
        self._is_stepwise = is_stepwise
        self._running: list[SimSequence] = []
        self._waiting: list[SimSequence] = []
        self._by_call: dict[tuple[int, int], SimSequence] = {}
        self._num_sequences = 0
        self._run: Run | None = None
        self._run_began_s = 0.0

    # --- EngineLike -------------------------------------------------------------------------------------------------

    @property
    def running(self) -> Sequence[SimSequence]:
        return self._running

    @property
    def waiting(self) -> Sequence[SimSequence]:
        return self._waiting

    @property
    def max_num_batched_tokens(self) -> int:
        return self.model.max_num_batched_tokens

    @property
    def max_num_seqs(self) -> int:
        return self.model.max_num_seqs

    @property
    def block_size(self) -> int:
        return self.model.block_size

    @property
    def free_blocks(self) -> int:
        return self.kv.free_blocks

    # --- inputs -----------------------------------------------------------------------------------------------------

    def receive(self, call: Call, request: SimRequest, gateway_index: int, now_s: float) -> None:
        """A call arrives. It is planned for from the next step on."""
        if self.is_down:
            self._tell(now_s, partial(self.listeners[gateway_index].failed, call))
            return
        sequence = SimSequence(self._num_sequences, call, request, gateway_index, now_s, self.kv, self.model.block_size)
        self._num_sequences += 1
        self._by_call[gateway_index, call.call_id] = sequence
        self._waiting.append(sequence)
        self._interrupt(now_s)

    def abort(self, call_id: int, gateway_index: int, now_s: float) -> None:
        """The gateway closed the connection: the sequence is gone after the step that runs."""
        sequence = self._by_call.get((gateway_index, call_id))
        if sequence is not None:
            sequence.is_aborted = True
            self._interrupt(now_s)

    def fail(self, now_s: float) -> None:
        """It goes down: every call breaks off, and the cache is lost."""
        self.is_down = True
        if (run := self._run) is not None:
            num_done = bisect.bisect_right(run.ends_s, now_s)
            self.num_steps += num_done
            self.busy_s += now_s - self._run_began_s
            del run.ends_s[num_done + 1 :]  # the steps before are heard of, if they weren't yet
        for sequence in [*self._running, *self._waiting]:
            if sequence.is_running:
                sequence.stop()
            if not sequence.is_aborted:
                self._tell(now_s, partial(self.listeners[sequence.gateway_index].failed, sequence.call))
        self._running, self._waiting, self._by_call, self._run = [], [], {}, None
        self.kv = KvPool(
            self.kv.num_blocks, chunk_blocks=self.kv.chunk_blocks, enable_prefix_caching=self.kv.enable_prefix_caching
        )

    def recover(self, now_s: float) -> None:
        """It is back, with an empty cache."""
        self.is_down = False

    # --- the step loop ----------------------------------------------------------------------------------------------

    def _interrupt(self, now_s: float) -> None:
        """Something came: the steps that haven't begun are planned anew."""
        run = self._run
        if run is None:
            self._begin(now_s)
        elif len(run.ends_s) > 1 and (keep := bisect.bisect_right(run.ends_s, now_s) + 1) < len(run.ends_s):
            del run.ends_s[keep:]
            self._schedule_end(run)

    def _begin(self, now_s: float) -> None:
        self._sweep()
        if not self._running and not self._waiting:
            return
        self.now_s = now_s
        plan = self._plan()
        rows, is_decode = self._apply(plan, now_s)
        time = self.model.step_time
        if is_decode:
            ends_s = decode_ends_s(time, rows, self._num_equal_steps(rows), now_s)
        else:
            ends_s = [mixed_end_s(time, rows, now_s)]
        self._run = Run(rows, is_decode, ends_s)
        self._run_began_s = now_s
        self._schedule_end(self._run)
        if is_decode:
            tell_of_progress(self._run, self.listeners, self._tell)

    def _schedule_end(self, run: Run) -> None:
        end_s = run.ends_s[-1]
        self._events.at(end_s, Phase.REPLICA_STEP, self.index, partial(self._end_if_current, run, len(run.ends_s)))

    def _end_if_current(self, run: Run, num_steps: int, now_s: float) -> None:
        if self._run is run and len(run.ends_s) == num_steps:
            self._end(run, now_s)

    def _sweep(self) -> None:
        """Forget what was aborted."""
        if not any(sequence.is_aborted for sequence in (*self._running, *self._waiting)):
            return
        for sequence in [*self._running, *self._waiting]:
            if sequence.is_aborted:
                del self._by_call[sequence.gateway_index, sequence.call.call_id]
                if sequence.is_running:
                    sequence.stop()
        self._running = [sequence for sequence in self._running if not sequence.is_aborted]
        self._waiting = [sequence for sequence in self._waiting if not sequence.is_aborted]

    def _plan(self) -> StepPlan:
        """As the bundled engine: a plan that breaks a rule is dropped and counted, and FCFS plans this step."""
        try:
            plan = self._composer.compose(self)
            check_plan(self, plan)
        except PolicyError:
            self.num_policy_errors += 1
            plan = self._fallback.compose(self)
            check_plan(self, plan)
        return plan

    def _apply(self, plan: StepPlan, now_s: float) -> tuple[list[tuple[SimSequence, int]], bool]:
        """The rows that run, and whether they are a token of everything that runs, with nobody new."""
        running = {sequence.sequence_id: sequence for sequence in self._running}
        is_decode = not plan.preempt
        if plan.preempt:
            self.num_preempted += len(plan.preempt)
            for sequence_id in plan.preempt:
                sequence = running.pop(sequence_id)
                sequence.stop()
                bisect.insort(self._waiting, sequence, key=_by_arrival)
            self._running = list(running.values())
        admitted = {row.sequence_id for row in plan.rows if row.sequence_id not in running}
        if admitted:
            is_decode = False
            for sequence in self._waiting:
                if sequence.sequence_id in admitted:
                    sequence.start()
                    if sequence.scheduled_s is None:
                        sequence.scheduled_s = now_s
                        sequence.cached_prompt_tokens = sequence.computed_tokens
                    bisect.insort(self._running, sequence, key=_by_arrival)
                    running[sequence.sequence_id] = sequence
            self._waiting = [sequence for sequence in self._waiting if not sequence.is_running]
        rows = [(running[row.sequence_id], row.num_tokens) for row in plan.rows]
        is_decode = is_decode and len(rows) == len(running)
        for sequence, num_tokens in rows:
            if sequence.computed_tokens + 1 != sequence.num_tokens or not sequence.output_tokens:
                is_decode = False
            sequence.reserve(num_tokens)
        return rows, is_decode

    def _num_equal_steps(self, rows: Rows) -> int:
        """How many steps in a row will be planned like this one, if nothing comes."""
        if self._is_stepwise or not rows or (self._waiting and not self._may_decode_past_waiting):
            return 1
        return num_equal_steps(rows, block_size=self.model.block_size, free_blocks=self.kv.free_blocks)

    def _end(self, run: Run, now_s: float) -> None:
        self._finish(run, now_s)
        self._begin(now_s)

    def _finish(self, run: Run, now_s: float) -> None:
        """Writes down what the steps of a run computed, and says it."""
        num_steps = len(run.ends_s)
        self._run = None
        self.num_steps += num_steps
        self.busy_s += now_s - self._run_began_s
        if run.is_decode:
            heard_s = [end_s + self._network_s for end_s in run.ends_s]
            if num_steps > 1:  # all of them before anyone gives blocks back
                for sequence, _ in run.rows:
                    sequence.reserve(num_steps)
            for sequence, _ in run.rows:
                sequence.computed(num_steps)
                sequence.num_tokens += num_steps
                sequence.token_s += heard_s
                self._say(sequence, run.ends_s[-1])
        else:
            for sequence, num_tokens in run.rows:
                sequence.computed(num_tokens)
                if sequence.computed_tokens == sequence.num_tokens:
                    sequence.num_tokens += 1
                    sequence.token_s.append(run.ends_s[-1] + self._network_s)
                    self._say(sequence, run.ends_s[-1])
        self._running = [sequence for sequence in self._running if sequence.is_running]

    def _say(self, sequence: SimSequence, now_s: float) -> None:
        """What the gateway hears of a sequence's newest token."""
        output_tokens = sequence.output_tokens
        is_last = sequence.num_tokens == sequence.target_tokens
        listener = self.listeners[sequence.gateway_index]
        if not sequence.is_aborted and (output_tokens == 1 or output_tokens % PROGRESS_EVERY_TOKENS == 0):
            self._tell(now_s, partial(listener.progressed, sequence, output_tokens))
        if is_last and not sequence.is_aborted:
            sequence.stop()
            del self._by_call[sequence.gateway_index, sequence.call.call_id]
            self._tell(now_s, partial(listener.ended, sequence))

    def _tell(self, now_s: float, action: Action) -> None:
        """Is heard by a gateway a network's delay later."""
        self._events.at(now_s + self._network_s, Phase.REPLICA_OUTPUT, self.index, action)


def _by_arrival(sequence: SimSequence) -> tuple[float, int]:
    return (sequence.arrival_s, sequence.sequence_id)
