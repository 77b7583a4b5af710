"""Between the engine's thread and asyncio: one stream of outputs a request."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType

from .engine import Engine, EngineStoppedError
from .outputs import ErrorOutput, Output, TokenOutput
from .sequence import GenerationRequest

logger = logging.getLogger(__name__)

_STOPPED = "the engine was stopped"


class GenerationError(Exception):
    """The engine gave the request up."""


class Stream:
    """The outputs of requests that share one answer, as an async iterator and a context manager.

    Each item is what one engine step said about them. Ends when every choice is finished; raises `GenerationError`
    when the engine fails one, `EngineStoppedError` when it ends before. Leaving the context early, by cancellation
    too, aborts what is unfinished.
    """

    def __init__(self, bridge: "Bridge", requests: Sequence[GenerationRequest]) -> None:
        self._bridge = bridge
        self._requests = requests
        self._unfinished = {request.request_id: request.num_choices for request in requests}
        self._batches: asyncio.Queue[list[Output]] = asyncio.Queue()

    def deliver(self, outputs: list[Output]) -> None:
        """Called by the bridge, on the event loop."""
        self._batches.put_nowait(outputs)

    async def __aenter__(self) -> "Stream":
        self._bridge.open(self, self._requests)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bridge.close([request.request_id for request in self._requests], list(self._unfinished))

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> list[TokenOutput]:
        if not self._unfinished:
            raise StopAsyncIteration
        tokens: list[TokenOutput] = []
        for output in await self._batches.get():
            if isinstance(output, ErrorOutput):
                if output.is_stopped:
                    raise EngineStoppedError(output.message)
                del self._unfinished[output.request_id]
                raise GenerationError(output.message)
            tokens.append(output)
            if output.finish_reason is not None:
                self._unfinished[output.request_id] -= 1
                if not self._unfinished[output.request_id]:
                    del self._unfinished[output.request_id]
        return tokens


class Bridge:
    """Hands requests to the engine and its outputs to streams. Lives on one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._streams: dict[str, Stream] = {}
        self._deadlines: set[asyncio.Timeout] = set()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Bind to the running loop. Before anything else."""
        self._loop = asyncio.get_running_loop()
        self._engine.subscribe(self._publish)

    @property
    def num_streams(self) -> int:
        """Requests whose streams are open."""
        return len(self._streams)

    def stop(self) -> None:
        """Give up on every answer that isn't complete, and on those that are asked for later. Idempotent."""
        self._is_stopped = True
        for deadline in self._deadlines:
            deadline.reschedule(asyncio.get_running_loop().time())
        self._deadlines.clear()
        self._deliver([ErrorOutput(request_id, _STOPPED, is_stopped=True) for request_id in self._streams])

    @asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """`stop` ends what is awaited inside, with `EngineStoppedError`."""
        if self._is_stopped:
            raise EngineStoppedError(_STOPPED)
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                try:
                    yield
                finally:
                    self._deadlines.discard(deadline)
        except TimeoutError:
            if deadline.expired():
                raise EngineStoppedError(_STOPPED) from None
            raise

    def stream(self, requests: Sequence[GenerationRequest]) -> Stream:
        """The stream of these requests, submitted when its context is entered.

        Entering raises what `Engine.submit` raises.
        """
        return Stream(self, requests)

    def open(self, stream: Stream, requests: Iterable[GenerationRequest]) -> None:
        """Submit a stream's requests."""
        if self._is_stopped:
            raise EngineStoppedError(_STOPPED)
        accepted = list(requests)
        self._engine.submit(accepted)
        for request in accepted:
            self._streams[request.request_id] = stream

    def close(self, request_ids: Iterable[str], unfinished: Sequence[str]) -> None:
        """Forget a stream; abort what is unfinished."""
        for request_id in request_ids:
            self._streams.pop(request_id, None)
        if unfinished:
            self._engine.abort(unfinished)

    def _publish(self, outputs: Sequence[Output]) -> None:
        """On the engine's thread: wake the loop once for all of a step."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._deliver, outputs)
        except RuntimeError:
            logger.info("%d outputs are dropped: the event loop is closed", len(outputs))

    def _deliver(self, outputs: Sequence[Output]) -> None:
        batches: defaultdict[Stream, list[Output]] = defaultdict(list)
        for output in outputs:
            # A request whose client left between step and delivery is no longer here.
            stream = self._streams.get(output.request_id)
            if stream is not None:
                batches[stream].append(output)
        for stream, batch in batches.items():
            stream.deliver(batch)
