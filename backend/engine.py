"""The engine: one thread that plans, computes, samples and reports, step after step.

Other threads talk to it through an inbox that is emptied between steps, so an abort takes effect within one step, and
no lock is held while the model computes. Everything it has to say leaves through `publish`, once a step.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

import torch

from .metrics import Metrics
from .outputs import ErrorOutput, FinishReason, Output, Timing, TokenOutput
from .runner import RunnerRow
from .sampler import SampledToken, Sampler
from .scheduler import Scheduler, StepRow
from .sequence import GenerationRequest
from .sequence import Sequence as EngineSequence
from .text import Detokenizer, TextStream

logger = logging.getLogger(__name__)

_FAILED = "the engine failed on this request"


class EngineStoppedError(Exception):
    """The engine doesn't run (any more)."""


class Runner(Protocol):
    """One forward pass."""

    def forward(self, rows: Sequence[RunnerRow]) -> torch.Tensor:
        """Write keys and values of all rows, return float32 logits [rows that need them, vocab], in order."""
        ...


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: tuple[GenerationRequest, ...]


@dataclass(frozen=True, slots=True)
class _Abort:
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(slots=True)
class _Live:
    """A request that isn't finished. Choices past the first wait for its first token, to share its prompt's blocks."""

    request: GenerationRequest
    sequences: dict[int, EngineSequence] = field(default_factory=dict)
    texts: dict[int, TextStream] = field(default_factory=dict)
    num_choices_to_start: int = 0


class Engine:
    """Continuous batching over one model.

    `submit`, `abort`, `start`, `stop` and the properties may be used from any thread. `run_pending` does the thread's
    work by hand: for tests and benchmarks, on an engine that wasn't started.
    """

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        scheduler: Scheduler,
        metrics: Metrics,
        *,
        new_detokenizer: Callable[[bool], Detokenizer],
        eos_token_ids: frozenset[int],
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        capacity = scheduler.blocks.num_blocks * scheduler.block_size
        if max_model_len > capacity:
            raise ValueError(
                f"max_model_len is {max_model_len} tokens, but the KV cache holds {capacity} "
                f"({scheduler.blocks.num_blocks} blocks of {scheduler.block_size}): one sequence must fit alone"
            )
        self.max_model_len = max_model_len
        self._runner = runner
        self._sampler = sampler
        self._scheduler = scheduler
        self._metrics = metrics
        self._new_detokenizer = new_detokenizer
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._publish: Callable[[Sequence[Output]], None] = _drop
        self._inbox: SimpleQueue[_Submit | _Abort | _Stop] = SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._next_sequence_id = 0
        self._is_stopped = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and takes requests."""
        return self._thread.is_alive() and not self._is_stopped

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def held_blocks(self) -> int:
        return self._scheduler.blocks.held_blocks

    def subscribe(self, publish: Callable[[Sequence[Output]], None]) -> None:
        """Where outputs go: called on the engine's thread, at most once a step and once an inbox."""
        self._publish = publish

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Queue requests. Raises `ValueError` for one that could never run, `EngineStoppedError` after `stop`."""
        accepted = tuple(requests)
        for request in accepted:
            num_tokens = len(request.prompt_token_ids) + request.max_tokens
            if not request.prompt_token_ids or request.max_tokens < 1 or num_tokens > self.max_model_len:
                raise ValueError(
                    f"{len(request.prompt_token_ids)} prompt tokens and max_tokens {request.max_tokens}: each must be "
                    f"at least 1 and together at most {self.max_model_len}"
                )
        if self._is_stopped:
            raise EngineStoppedError("the engine is stopped")
        self._inbox.put(_Submit(accepted))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget these requests within one step; nothing more is said about them. Unknown ids: no effect."""
        self._inbox.put(_Abort(tuple(request_ids)))

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Finish the step that runs, fail what is left, end the thread. Idempotent."""
        self._is_stopped = True
        self._inbox.put(_Stop())
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def run_pending(self) -> bool:
        """Empty the inbox and run one step if there is work. Returns whether there was."""
        while not self._inbox.empty():
            self._handle(self._inbox.get())
        if not self._scheduler.has_work:
            return False
        with torch.inference_mode():
            self._step()
        return True

    def check_integrity(self) -> None:
        """Raise unless scheduler, blocks and requests agree. On the engine's thread, or while it is not running."""
        self._scheduler.check_integrity()
        listed = {id(sequence) for sequence in (*self._scheduler.running, *self._scheduler.waiting)}
        known = {id(sequence) for live in self._live.values() for sequence in live.sequences.values()}
        if listed != known:
            raise AssertionError("the scheduler's sequences are not those of the live requests")

    def _loop(self) -> None:
        while True:
            if not self._scheduler.has_work:
                message = self._inbox.get()
                if isinstance(message, _Stop):
                    break
                self._handle(message)
            self.run_pending()
            if self._is_stopped:
                break
        # Requests that came in while it stopped get their error, too.
        while not self._inbox.empty():
            self._handle(self._inbox.get())
        self._fail(list(self._live), "the engine was stopped", is_stopped=True)

    def _handle(self, message: _Submit | _Abort | _Stop) -> None:
        match message:
            case _Submit(requests):
                for request in requests:
                    live = _Live(request, num_choices_to_start=request.num_choices - 1)
                    self._live[request.request_id] = live
                    try:
                        self._start_choice(live, request.first_choice)
                    except Exception:
                        logger.exception("request %s could not be started", request.request_id)
                        self._fail([request.request_id], _FAILED)
            case _Abort(request_ids):
                for request_id in request_ids:
                    self._forget(request_id)
            case _Stop():
                pass

    def _start_choice(self, live: _Live, choice: int) -> None:
        sequence = EngineSequence(self._next_sequence_id, live.request, choice, self._scheduler.blocks)
        self._next_sequence_id += 1
        live.sequences[choice] = sequence
        live.texts[choice] = TextStream(
            self._new_detokenizer(live.request.skip_special_tokens), live.request.stop, live.request.min_tokens
        )
        self._scheduler.add(sequence)

    def _forget(self, request_id: str) -> None:
        live = self._live.pop(request_id, None)
        if live is not None:
            for sequence in live.sequences.values():
                self._scheduler.finish(sequence)

    def _fail(self, request_ids: Iterable[str], message: str, *, is_stopped: bool = False) -> None:
        failed = [request_id for request_id in dict.fromkeys(request_ids) if request_id in self._live]
        for request_id in failed:
            self._forget(request_id)
            self._metrics.observe_failure()
        if failed:
            self._publish([ErrorOutput(request_id, message, is_stopped=is_stopped) for request_id in failed])

    def _step(self) -> None:
        started_s = self._clock()
        num_policy_errors = self._scheduler.num_policy_errors
        try:
            step = self._scheduler.plan_step()
        except Exception:
            # Whose fault it is can't be told, and planning the same again would fail again.
            logger.exception("planning a step failed; every request fails")
            self._fail(list(self._live), "the engine could not plan a step")
            return
        for row in step.rows:
            if row.sequence.scheduled_s is None:
                row.sequence.scheduled_s = started_s
                row.sequence.cached_prompt_tokens = row.sequence.computed_tokens
                self._metrics.observe_scheduled(row.sequence.num_prompt_tokens, row.sequence.cached_prompt_tokens)
        last_rows = [row for row in step.rows if row.reaches_end]
        try:
            forward_s, logits = self._forward(step.rows)
        except Exception:
            logger.exception("a step of %d sequences failed", len(step.rows))
            self._fail((row.sequence.request.request_id for row in step.rows), _FAILED)
            return
        for row in step.rows:
            row.sequence.computed(row.num_tokens)
        tokens = self._sample([row.sequence for row in last_rows], logits)
        now_s = self._clock()
        outputs = []
        failed = [
            row.sequence.request.request_id for row, token in zip(last_rows, tokens, strict=True) if token is None
        ]
        for row, token in zip(last_rows, tokens, strict=True):
            sequence = row.sequence
            if token is None or sequence.request.request_id in failed:
                continue
            try:
                outputs.append(self._accept(sequence, token, now_s))
            except Exception:
                logger.exception("request %s failed on a token", sequence.request.request_id)
                failed.append(sequence.request.request_id)
        if outputs:
            self._publish(outputs)
        self._fail(failed, _FAILED)
        self._metrics.observe_step(
            step_s=self._clock() - started_s,
            forward_s=forward_s,
            num_tokens=sum(row.num_tokens for row in step.rows),
            num_preempted=step.num_preempted,
            num_policy_errors=self._scheduler.num_policy_errors - num_policy_errors,
        )

    def _forward(self, step_rows: Sequence[StepRow]) -> tuple[float, torch.Tensor]:
        """The seconds it took, and the logits of the rows that reach their end."""
        if not step_rows:
            return 0.0, torch.empty(0)
        rows = [
            RunnerRow(
                token_ids=row.token_ids,
                start_position=row.sequence.computed_tokens,
                block_table=row.sequence.block_table,
                needs_logits=row.reaches_end,
            )
            for row in step_rows
        ]
        started_s = self._clock()
        logits = self._runner.forward(rows)
        return self._clock() - started_s, logits

    def _sample(self, sequences: Sequence[EngineSequence], logits: torch.Tensor) -> list[SampledToken | None]:
        """A token for each row of logits; None where that failed, which is no other's concern."""
        if not sequences:
            return []
        try:
            return [*self._draw(sequences, logits)]
        except Exception:
            logger.exception("sampling %d sequences together failed: now one by one", len(sequences))
        tokens: list[SampledToken | None] = []
        for position, sequence in enumerate(sequences):
            sequence.rewind_generator()
            try:
                tokens += self._draw([sequence], logits[position : position + 1])
            except Exception:
                logger.exception("sampling request %s failed", sequence.request.request_id)
                tokens.append(None)
        return tokens

    def _draw(self, sequences: Sequence[EngineSequence], logits: torch.Tensor) -> list[SampledToken]:
        for position, sequence in enumerate(sequences):
            if sequence.num_output_tokens < sequence.request.min_tokens:
                ends = self._eos_token_ids | sequence.request.stop_token_ids
                logits[position, list(ends)] = float("-inf")
        return self._sampler.sample(
            logits,
            [sequence.request.sampling for sequence in sequences],
            [sequence.generator for sequence in sequences],
        )

    def _accept(self, sequence: EngineSequence, token: SampledToken, now_s: float) -> TokenOutput:
        """Append a sampled token, see whether it ends the sequence."""
        request = sequence.request
        live = self._live[request.request_id]
        sequence.token_ids.append(token.token_id)
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
            self._metrics.observe_first_token(now_s - sequence.arrival_s)
        else:
            self._metrics.observe_inter_token(now_s - (sequence.last_token_s or now_s))
        sequence.last_token_s = now_s
        text, finish_reason, stop_reason = self._text_and_end(sequence, live.texts[sequence.choice], token.token_id)
        output = TokenOutput(
            request_id=request.request_id,
            choice=sequence.choice,
            token=token,
            text=text,
            num_output_tokens=sequence.num_output_tokens,
            timing=_timing(sequence),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )
        if finish_reason is not None:
            self._scheduler.finish(sequence)
            del live.sequences[sequence.choice], live.texts[sequence.choice]
            self._metrics.observe_finished(output.timing, finish_reason, output.num_output_tokens)
        first_choice = request.first_choice
        while live.num_choices_to_start:
            self._start_choice(live, first_choice + request.num_choices - live.num_choices_to_start)
            live.num_choices_to_start -= 1
        if not live.sequences:
            del self._live[request.request_id]
        return output

    def _text_and_end(
        self, sequence: EngineSequence, text: TextStream, token_id: int
    ) -> tuple[str, FinishReason | None, str | int | None]:
        request = sequence.request
        if sequence.num_output_tokens >= request.min_tokens:
            if token_id in request.stop_token_ids:
                return text.flush(), FinishReason.STOP, token_id
            if token_id in self._eos_token_ids and not request.ignore_eos:
                return text.flush(), FinishReason.STOP, None
        piece = text.push(token_id)
        if piece.stopped_by is not None:
            return piece.text, FinishReason.STOP, piece.stopped_by
        if sequence.num_output_tokens >= request.max_tokens:
            return piece.text + text.flush(), FinishReason.LENGTH, None
        return piece.text, None, None


def _drop(_: Sequence[Output]) -> None:
    """Before anyone subscribes."""


def _timing(sequence: EngineSequence) -> Timing:
    scheduled_s, first_s, last_s = sequence.scheduled_s, sequence.first_token_s, sequence.last_token_s
    if scheduled_s is None or first_s is None or last_s is None:
        raise AssertionError("a sequence that gave a token was scheduled")
    return Timing(sequence.arrival_s, scheduled_s, first_s, last_s, sequence.cached_prompt_tokens)
