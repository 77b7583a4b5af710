"""Between engine thread and event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backend.bridge import Bridge, GenerationError
from backend.engine import Engine
from backend.outputs import ErrorOutput, TokenOutput
from backend.runner import RunnerRow
from tests.support.serve import until

from .fake_model import FakeRunner, expected_tokens, make_engine, request


@asynccontextmanager
async def bridged(**options: Any) -> AsyncIterator[tuple[Bridge, Engine, FakeRunner]]:
    """A started engine and its bridge."""
    engine, runner, _, _ = make_engine(**options)
    bridge = Bridge(engine)
    bridge.attach()
    engine.start()
    try:
        yield bridge, engine, runner
    finally:
        await asyncio.to_thread(engine.stop)


async def test_a_stream_gives_the_tokens_of_its_requests_and_ends() -> None:
    """Two requests share one stream; afterwards nothing is registered."""
    async with bridged() as (bridge, _, _):
        tokens: dict[str, list[int]] = {"a": [], "b": []}
        async with bridge.stream([request("a", [1, 2], 9), request("b", [3, 4], 9)]) as stream:
            assert bridge.num_streams == 2
            async for outputs in stream:
                for output in outputs:
                    tokens[output.request_id].append(output.token.token_id)
        assert tokens == {"a": expected_tokens([1, 2], 9), "b": expected_tokens([3, 4], 9)}
        assert bridge.num_streams == 0


async def test_the_loop_is_woken_once_a_step() -> None:
    """Eight sequences in a batch: as many wake-ups as steps, not as tokens."""
    async with bridged() as (bridge, _, runner):
        loop = asyncio.get_running_loop()
        wakeups = []
        call = loop.call_soon_threadsafe

        def counting(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Handle:
            if callback == bridge._deliver:
                wakeups.append(args)
            return call(callback, *args, **kwargs)

        loop.call_soon_threadsafe = counting  # type: ignore[method-assign,assignment]
        try:
            async with bridge.stream([request("r", [1], 20, num_choices=8, ignore_eos=True)]) as stream:
                num_tokens = sum([len(outputs) async for outputs in stream])
        finally:
            loop.call_soon_threadsafe = call  # type: ignore[method-assign]
        assert num_tokens == 160
        assert len(wakeups) == runner.num_steps <= 30


async def test_cancelling_the_consumer_aborts() -> None:
    """A task that waits for tokens is cancelled: the engine forgets the request."""
    async with bridged() as (bridge, engine, _):
        started = asyncio.Event()

        async def consume() -> None:
            async with bridge.stream([request("r", [1], 1000, ignore_eos=True)]) as stream:
                async for _ in stream:
                    started.set()

        task = asyncio.create_task(consume())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: engine.num_running == 0 and engine.held_blocks == 0)
        assert bridge.num_streams == 0


async def test_a_failure_is_raised_and_aborts_what_shares_the_stream() -> None:
    """The error reaches the consumer; the other request is aborted, not left to run."""
    async with bridged(max_num_seqs=1) as (bridge, engine, runner):

        def fail(rows: Sequence[RunnerRow]) -> None:
            raise RuntimeError("planted")

        runner.before_forward = fail

        async def consume() -> None:
            async with bridge.stream([request("a", [1], 5), request("b", [2], 5, arrival_s=1.0)]) as stream:
                async for _ in stream:
                    raise AssertionError("no token can come")

        with pytest.raises(GenerationError, match="failed on this request"):
            await consume()
        await until(lambda: engine.num_waiting == 0 and engine.num_running == 0)


async def test_a_refused_request_is_not_registered() -> None:
    """Submitting raises; nothing stays behind."""
    async with bridged(max_model_len=8) as (bridge, _, _):
        with pytest.raises(ValueError, match="together at most 8"):
            async with bridge.stream([request("r", [1] * 8, 5)]):
                raise AssertionError("not reached")
        assert bridge.num_streams == 0


async def test_outputs_of_a_forgotten_request_are_dropped() -> None:
    """What was on its way when the client left has no receiver and does no harm."""
    async with bridged() as (bridge, _, _):
        async with bridge.stream([request("r", [1], 2)]) as stream:
            outputs = [output async for batch in stream for output in batch]
        assert all(isinstance(output, TokenOutput) for output in outputs)
        bridge._deliver([ErrorOutput("r", "late")])


def test_a_closed_loop_does_not_stop_the_engine() -> None:
    """Outputs after the loop is gone are dropped; before it is attached, too."""
    engine, _, _, _ = make_engine()
    bridge = Bridge(engine)
    bridge._publish([ErrorOutput("r", "nobody listens")])
    loop = asyncio.new_event_loop()

    async def attach() -> None:
        bridge.attach()

    loop.run_until_complete(attach())
    loop.close()
    engine.submit([request("r", [1], 3, ignore_eos=True)])
    while engine.run_pending():
        pass
    assert engine.held_blocks == 0
