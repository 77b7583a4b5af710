"""The engine: one thread that plans, computes, samples and reports, step after step.

Other threads talk to it through an inbox that is emptied between steps, so an abort takes effect within one step, and
no lock is held while the model computes. Everything it has to say leaves through `publish`, once a step.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from .drawing import Drawing
from .forward import Forward, Runner
from .live import LiveRequests
from .metrics import Metrics
from .outputs import ErrorOutput, Output
from .sampler import Sampler
from .scheduler import Scheduler
from .sequence import GenerationRequest
from .text import Detokenizer

logger = logging.getLogger(__name__)

_FAILED = "the engine failed on this request"


class EngineStoppedError(Exception):
    """The engine doesn't run (any more)."""


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: tuple[GenerationRequest, ...]


@dataclass(frozen=True, slots=True)
class _Abort:
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


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
        self._forward = Forward(runner)
        self._drawing = Drawing(sampler, eos_token_ids)
        self._scheduler = scheduler
        self._metrics = metrics
        self._clock = clock
        self._publish: Callable[[Sequence[Output]], None] = _drop
        self._inbox: SimpleQueue[_Submit | _Abort | _Stop] = SimpleQueue()
        self._live = LiveRequests(scheduler, metrics, new_detokenizer=new_detokenizer, eos_token_ids=eos_token_ids)
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
        self._live.check_integrity()

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
        self._fail(self._live.request_ids, "the engine was stopped", is_stopped=True)

    def _handle(self, message: _Submit | _Abort | _Stop) -> None:
        match message:
            case _Submit(requests):
                for request in requests:
                    try:
                        self._live.start(request)
                    except Exception:
                        logger.exception("request %s could not be started", request.request_id)
                        self._fail([request.request_id], _FAILED)
            case _Abort(request_ids):
                for request_id in request_ids:
                    self._live.forget(request_id)
            case _Stop():
                pass

    def _fail(self, request_ids: Iterable[str], message: str, *, is_stopped: bool = False) -> None:
        failed = [request_id for request_id in dict.fromkeys(request_ids) if request_id in self._live]
        for request_id in failed:
            self._live.forget(request_id)
            self._metrics.observe_failure()
        if failed:
            self._publish([ErrorOutput(request_id, message, is_stopped=is_stopped) for request_id in failed])

    def _step(self) -> None:
        started_s = self._clock()
        num_policy_errors = self._scheduler.num_policy_errors
        try:
            step = self._scheduler.plan_step(started_s)
        except Exception:
            # Whose fault it is can't be told, and planning the same again would fail again.
            logger.exception("planning a step failed; every request fails")
            self._fail(self._live.request_ids, "the engine could not plan a step")
            return
        for row in step.rows:
            if row.sequence.scheduled_s is None:
                row.sequence.scheduled_s = started_s
                row.sequence.cached_prompt_tokens = row.sequence.computed_tokens
                self._metrics.observe_scheduled(row.sequence.prompt_tokens, row.sequence.cached_prompt_tokens)
        forward_started_s = self._clock()
        computed, failed_rows, logits = self._forward.run(step.rows)
        forward_s = self._clock() - forward_started_s
        ended = [row.sequence for row in computed if row.reaches_end]
        for row in computed:
            row.sequence.computed(row.num_tokens)
        tokens = self._drawing.draw(ended, logits)
        now_s = self._clock()
        failed = [row.sequence.request.request_id for row in failed_rows]
        failed += [sequence.request.request_id for sequence, token in zip(ended, tokens, strict=True) if token is None]
        outputs = []
        for sequence, token in zip(ended, tokens, strict=True):
            if token is None or sequence.request.request_id in failed:
                continue
            try:
                outputs.append(self._live.accept(sequence, token, now_s))
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


def _drop(_: Sequence[Output]) -> None:
    """Before anyone subscribes."""
