"""The load client against a server whose every byte is scripted."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from loadtests.client import LoadClient
from loadtests.errors import TargetError
from loadtests.prompts import PromptMaker
from loadtests.workload import PlannedRequest

from .scripted_server import Stream, plain_answer, scripted_server

HELLO = [{"role": "user", "content": "hello"}]


def _request(index: int = 0, arrival_s: float = 0.0, output_tokens: int = 3, prompt_tokens: int = 20) -> PlannedRequest:
    return PlannedRequest(index, "short", arrival_s, prompt_tokens, output_tokens)


async def test_instants_are_those_of_the_chunks() -> None:
    """The head, an empty delta, then text: TTFT is the first text's, each gap the server's own."""
    written: list[float] = []

    async def script(stream: Stream, _body: dict[str, Any]) -> None:
        await stream.open()
        await stream.text("")
        for _ in range(3):
            await asyncio.sleep(0.05)  # the gap under test
            written.append(time.monotonic())
            await stream.text("x")
        await stream.usage(11, 3)
        await stream.done()

    async with scripted_server(script) as (url, _), LoadClient(url, "scripted") as client:
        answer = await client.send(_request(), HELLO)
    assert answer.is_ok
    assert answer.head_s is not None
    assert answer.head_s < answer.chunk_s[0]
    assert len(answer.chunk_s) == 3
    for seen, sent in zip(answer.chunk_s, written, strict=True):
        assert 0.0 <= seen - sent < 0.04
    assert answer.ttft_s == answer.chunk_s[0] - answer.sent_s
    assert answer.tpot_s == pytest.approx((answer.chunk_s[2] - answer.chunk_s[0]) / 2)
    assert (answer.received_prompt_tokens, answer.received_tokens) == (11, 3)
    assert answer.headers == {"x-tailgate-lane": "standard"}


async def test_events_split_anywhere_are_put_together() -> None:
    """A chunk cut in the middle of its JSON, CRLF line ends and comments change nothing."""

    async def script(stream: Stream, _body: dict[str, Any]) -> None:
        await stream.open()
        await stream.raw(b': keep-alive\n\ndata: {"choices":[{"del')
        await asyncio.sleep(0.01)
        await stream.raw(b'ta":{"content":"a"}}]}\r\n\r\ndata: [DONE]\n\n')

    async with scripted_server(script) as (url, _), LoadClient(url, "scripted") as client:
        answer = await client.send(_request(), HELLO)
    assert (answer.error, len(answer.chunk_s), answer.received_tokens) == (None, 1, 1)


async def _cut(stream: Stream, _body: dict[str, Any]) -> None:
    await stream.open()
    await stream.text("a")


async def _abort(stream: Stream, _body: dict[str, Any]) -> None:
    await stream.open()
    await stream.text("a")
    transport = stream._request.transport
    assert transport is not None
    transport.abort()


async def _not_json(stream: Stream, _body: dict[str, Any]) -> None:
    await stream.open()
    await stream.raw(b"data: {nonsense\n\ndata: [DONE]\n\n")


async def _error_event(stream: Stream, _body: dict[str, Any]) -> None:
    await stream.open()
    await stream.raw(b'data: {"error": {"message": "boom"}}\n\n')


async def _hang(stream: Stream, _body: dict[str, Any]) -> None:
    await stream.open()
    await stream.text("a")
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("script", "kinds"),
    [
        (_cut, {"cut"}),
        (_abort, {"cut", "reset"}),
        (_not_json, {"protocol"}),
        (_error_event, {"stream-error"}),
    ],
)
async def test_failures_are_told_by_kind(script: Any, kinds: set[str]) -> None:
    """Each way to fail has its name and never raises."""
    async with scripted_server(script) as (url, _), LoadClient(url, "scripted") as client:
        answer = await client.send(_request(), HELLO)
    assert answer.error in kinds
    assert not answer.is_ok
    assert answer.e2e_s is None


async def test_a_refused_connection_and_a_4xx_are_failures_too() -> None:
    """Nobody listening is `connect`; a status is `http-STATUS`."""

    async def refuse(_stream: Stream, _body: dict[str, Any]) -> None:
        raise aiohttp.web.HTTPTooManyRequests

    async with scripted_server(refuse) as (url, _), LoadClient(url, "scripted") as client:
        answer = await client.send(_request(), HELLO)
    assert (answer.status, answer.error) == (429, "http-429")
    async with LoadClient(url, "scripted") as client:
        assert (await client.send(_request(), HELLO)).error == "connect"
        with pytest.raises(TargetError, match=r"cannot be reached: connection refused$"):
            await client.first_model()
        with pytest.raises(TargetError, match=r"cannot be reached: connection refused$"):
            await client.post_json("/tokenize", {})
    async with LoadClient("http://no.such.host.invalid", "m") as client:
        with pytest.raises(TargetError, match=r"cannot be reached: no such host$"):
            await client.first_model()


async def test_the_url_may_be_a_clients_own() -> None:
    """With /v1 and slashes, as OPENAI_BASE_URL has it; what is no URL is refused by name before anything is sent."""
    async with scripted_server() as (url, _):
        assert await _first_model(f"{url}/v1/") == "scripted"
    for wrong in ("127.0.0.1:8000", "ftp://host", "http://", "http://host:99999", "http://host?x=1", ""):
        with pytest.raises(TargetError, match="must be http://HOST"):
            LoadClient(wrong, "m")


async def test_a_server_that_never_answers_a_question_is_told() -> None:
    """Apart from load, whose timeouts are answers of a kind."""
    async with scripted_server(_hang) as (url, _), LoadClient(url, "scripted", timeout_s=0.1) as client:
        with pytest.raises(TargetError, match=r"cannot be reached: no answer in time$"):
            await client.post_json("/v1/chat/completions", {"stream": True, "messages": [], "max_tokens": 1})


async def test_a_slow_server_runs_into_the_timeout_and_a_planned_leave_is_called_so() -> None:
    """The same hanging answer is `timeout` when patience ends and `left` when the client meant to go."""
    async with scripted_server(_hang) as (url, _), LoadClient(url, "scripted", timeout_s=0.2) as client:
        assert (await client.send(_request(), HELLO)).error == "timeout"
        assert (await client.send(_request(), HELLO, leave_after_s=0.05)).error == "left"


async def test_the_open_loop_does_not_wait_for_answers() -> None:
    """Answers that never come hold up no later request; the run's end cuts them, and the lag is measured."""
    async with scripted_server(_hang) as (url, recorder), LoadClient(url, "scripted") as client:
        plan = [_request(index, arrival_s=0.02 * index) for index in range(5)]
        started_s = time.monotonic()
        answers = await client.open_loop(plan, lambda _request: HELLO, limit_s=0.5)
        assert time.monotonic() - started_s < 3.0
        assert len(recorder.bodies) == 5
    assert [answer.error for answer in answers] == ["run-ended"] * 5
    for planned, answer in zip(plan, answers, strict=True):
        assert answer.scheduled_s == pytest.approx(started_s + planned.arrival_s, abs=0.2)
        assert 0.0 <= answer.lag_s < 0.5


async def test_the_closed_loop_sends_everything_once_and_reuses_connections() -> None:
    """Two callers share twelve requests; all but the first of each caller find an open connection."""
    async with scripted_server() as (url, recorder), LoadClient(url, "scripted") as client:
        answers = await client.closed_loop(
            [_request(index) for index in range(12)],
            lambda _request: HELLO,
            num_clients=2,
        )
    assert sorted(answer.index for answer in answers) == list(range(12))
    assert len(recorder.bodies) == 12
    assert sum(answer.is_reused_connection for answer in answers) == 10
    body = recorder.bodies[0]
    assert (body["max_tokens"], body["ignore_eos"], body["stream_options"]) == (3, True, {"include_usage": True})


async def test_the_closed_loop_ends_on_time() -> None:
    """An endless source and a hanging server end when told, and what ran is kept as cut."""
    async with scripted_server(_hang) as (url, _), LoadClient(url, "scripted") as client:
        answers = await client.closed_loop(
            (_request(index) for index in range(10_000)), lambda _request: HELLO, num_clients=3, duration_s=0.2
        )
    assert [answer.error for answer in answers] == ["run-ended"] * 3


@pytest.mark.parametrize("has_tokenize", [True, False])
async def test_prompts_have_the_wanted_length_and_share_nothing(has_tokenize: bool) -> None:
    """By the server's own count lengths are exact; two requests share no prefix unless the scenario says so."""
    async with (
        scripted_server(plain_answer, has_tokenize=has_tokenize) as (url, _),
        LoadClient(url, await _first_model(url)) as client,
    ):
        maker = await PromptMaker.calibrate(client)
        messages = [maker.messages(_request(index), "key") for index in range(20)]
        answer = await client.send(_request(), messages[0])
    assert answer.received_prompt_tokens == 20
    assert len({tuple(message[0]["content"].split()[:3]) for message in messages}) == 20
    assert maker.messages(_request(3), "key") == messages[3]
    assert maker.messages(_request(3), "other key") != messages[3]
    shared = [PlannedRequest(index, "short", 0.0, 30, 1, shared_prefix_tokens=15) for index in range(2)]
    first, second = (maker.messages(request, "key")[0]["content"].split() for request in shared)
    assert first[:10] == second[:10]
    assert first[10:] != second[10:]


async def _first_model(url: str) -> str:
    async with LoadClient(url, "") as client:
        return await client.first_model()
