"""Short requests beside long prompts: what is sent in each scene, and which figures become bars."""

import asyncio
import json
from typing import Any

import pytest

from loadtests.bars.bar import Bar
from loadtests.bars.slices_topic import bars_of, slices_bars
from loadtests.client import LoadClient
from loadtests.slices import SCENES, Scene, Seen, measure_slices, to_dict
from tests.support.fake_replica import DONE as END_OF_STREAM
from tests.support.fake_replica import Call, FakeReplica, delta, finish, usage_event


class Engine:
    """Answers long prompts only once two short ones have come, and says that they were cached."""

    def __init__(self) -> None:
        self.replica = FakeReplica(self._serve)
        self.num_short = 0
        self.seen: list[tuple[int, Any]] = []
        self._may_answer = asyncio.Event()

    async def _serve(self, call: Call) -> None:
        body = json.loads(call.received.body)
        num_tokens = sum(len(message["content"].split()) for message in body.get("messages", ()))
        if call.received.path == "/tokenize":
            await call.whole(json.dumps({"count": num_tokens}).encode())
            return
        self.seen.append((num_tokens, body.get("tools")))
        if num_tokens < 1000:
            self.num_short += 1
            if self.num_short == 2:
                self._may_answer.set()
        else:
            await self._may_answer.wait()
        await call.head(headers=[("content-type", "text/event-stream")])
        cached = {"prompt_tokens_details": {"cached_tokens": num_tokens // 2}}
        usage = usage_event(num_tokens, 1).replace(b'"completion_tokens":1', b'"completion_tokens":1,' + _inner(cached))
        for piece in (delta("x"), finish(), usage, END_OF_STREAM):
            await call.chunk(piece)
        await call.end()


def _inner(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()[1:-1]


async def test_a_scene_is_long_prompts_with_short_ones_until_they_have_their_first_token() -> None:
    """All long ones at once, of their share of the length; short ones every half second; what was cached is noted."""
    engine = Engine()
    scene = Scene("two", 2, 0.5, 0.01)
    async with engine.replica, LoadClient(engine.replica.url, "m1") as client:
        rounds = await measure_slices(
            {"direct": client},
            long_tokens=4000,
            num_rounds=1,
            scenes=[scene],
            on_step=lambda what, total: lambda _: None,
        )
    (seen,) = rounds["two"]["direct"]
    assert [tokens for tokens, _ in engine.seen].count(2000) == 2
    assert all(tools for _, tools in engine.seen)
    assert len(seen.long_ttft_s) == 2
    assert len(seen.short_ttft_s) >= 2
    assert seen.cached_ratio == 0.5
    assert min(seen.long_ttft_s) > seen.short_worst_s
    assert to_dict(rounds)["two"]["direct"][0]["cached_ratio"] == 0.5


def _seen(short: float, worst: float, long: float, cached: float | None = 0.99) -> Seen:
    return Seen((short, short, worst), (long,), cached)


def test_bars_are_ratios_within_a_round() -> None:
    """The machine of one round may be slower than that of another: each round has its own ratio."""
    rounds = {
        scene.name: {
            "direct": [_seen(5.0, 11.0, 10.0), _seen(10.0, 22.0, 20.0)],
            "whole": [_seen(5.0, 11.0, 10.0), _seen(10.0, 22.0, 20.0)],
            "slices": [_seen(0.25, 1.0, 11.0), _seen(0.5, 2.0, 22.0)],
        }
        for scene in SCENES
    }
    bars = {bar.name: bar for bar in bars_of(rounds)}
    assert bars["slices-one-short-median-gain"].value == 20.0
    assert bars["slices-three-short-worst-gain"].value == 11.0
    assert bars["slices-late-short-worst-ratio"].value == pytest.approx(1 / 11)
    assert bars["slices-one-long-ratio"].value == pytest.approx(1.1)
    assert bars["slices-cached-ratio"].value == 0.99
    assert all(bar.holds for bar in bars.values())
    rounds["one"]["slices"][0] = _seen(0.25, 1.0, 11.0, None)
    assert {bar.name: bar for bar in bars_of(rounds)}["slices-cached-ratio"].is_skipped


async def test_without_an_engine_the_topic_is_skipped() -> None:
    """It says what it takes."""
    reported: list[Bar] = []
    await slices_bars(lambda what, total: lambda _: None, reported.append, url=None, long_tokens=16_000, num_rounds=1)
    assert [bar.line() for bar in reported] == ["bar slices skipped"]
