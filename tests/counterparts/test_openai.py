"""The Python package `openai` through the gateway to doubles: errors, leaving, fields nobody here reads."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam

from tests.support.fake_replica import DONE, Behaviour, Call, FakeReplica, answers, delta, event, finish, hangs, streams
from tests.support.keys import write_keys
from tests.support.serve import until

from .entrance import entrance_to

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
TOOLS: list[ChatCompletionToolUnionParam] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter – 天気",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
TOOL_CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Zürich"}'},
}


@asynccontextmanager
async def client_of(
    *replicas: FakeReplica, key: str = "none", max_retries: int = 0, **config: Any
) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a gateway in front of these."""
    async with (
        entrance_to(*replicas, **config) as entrance,
        openai.AsyncOpenAI(base_url=f"{entrance.url}/v1", api_key=key, max_retries=max_retries) as client,
    ):
        yield client


def refuses(status: int, **error: Any) -> Behaviour:
    """An error as OpenAI writes it."""
    return _answers({"error": {"message": "no", "type": "t", "param": None, "code": None} | error}, status)


def _answers(body: object, status: int = 200) -> Behaviour:
    async def behave(call: Call) -> None:
        await call.whole(json.dumps(body).encode(), status=status, headers=[("x-request-id", "req-7")])

    return behave


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
async def test_a_replicas_error_is_the_exception_it_would_be_without_a_gateway(
    status: int, expected: type[openai.APIStatusError]
) -> None:
    """Class, code, parameter and request id of the replica's, streaming or not."""
    async with FakeReplica(refuses(status, code="c1", param="p1")) as replica, client_of(replica) as client:
        for stream in (False, True):
            with pytest.raises(expected) as error:
                await client.chat.completions.create(model="m1", messages=MESSAGES, stream=stream)
            assert (error.value.status_code, error.value.code, error.value.param) == (status, "c1", "p1")
            assert error.value.request_id == "req-7"


async def test_errors_of_the_gateways_own() -> None:
    """An unknown model, a wrong field, a replica that is gone, one that keeps silent."""
    async with (
        FakeReplica(hangs()) as replica,
        client_of(replica, timeouts={"first_byte_s": 0.05}) as client,
    ):
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(model="m1", messages=MESSAGES, extra_body={"max_tokens": "many"})
        assert wrong.value.param == "max_tokens"
        with pytest.raises(openai.InternalServerError) as silent:
            await client.chat.completions.create(model="m1", messages=MESSAGES)
        assert (silent.value.status_code, silent.value.code) == (504, "upstream_timeout")


async def test_keys_and_their_limits_are_the_clients_exceptions(tmp_path: Path) -> None:
    """AuthenticationError, PermissionDeniedError, RateLimitError with what is left and when to come again."""
    write_keys(tmp_path / "keys.json", one={"requests_per_min": 1}, other={"models": ["m2"]})
    async with (
        FakeReplica(answers()) as replica,
        client_of(replica, key="sk-one", keys=str(tmp_path / "keys.json")) as client,
    ):
        await client.chat.completions.create(model="m1", messages=MESSAGES)
        with pytest.raises(openai.RateLimitError) as limited:
            await client.chat.completions.create(model="m1", messages=MESSAGES)
        assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60
        assert limited.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        assert limited.value.code == "rate_limit_exceeded"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="sk-none").chat.completions.create(model="m1", messages=MESSAGES)
        with pytest.raises(openai.PermissionDeniedError):
            await client.with_options(api_key="sk-other").chat.completions.create(model="m1", messages=MESSAGES)


async def test_the_clients_own_retry_is_answered() -> None:
    """It comes again after a 503 of the gateway's, as its Retry-After says, and is a request like any other."""
    times = iter([refuses(503), answers()])

    async def behave(call: Call) -> None:
        await next(times)(call)

    async with FakeReplica(behave) as replica, client_of(replica, max_retries=1) as client:
        raw = await client.chat.completions.with_raw_response.create(model="m1", messages=MESSAGES)
        assert raw.retries_taken == 1
        assert replica.received[1].header("x-stainless-retry-count") == ["1"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeout_of_the_clients_closes_the_replicas_call(stream: bool) -> None:
    """APITimeoutError there; the replica's connection ends."""
    async with FakeReplica(hangs()) as replica, client_of(replica) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="m1", messages=MESSAGES, stream=stream, timeout=0.2)
        await until(lambda: replica.num_aborted == 1)


async def _close(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="m1", messages=MESSAGES, stream=True)
    assert (await anext(aiter(stream))).choices[0].delta.content == "one"
    await stream.close()


async def _leave_block(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="m1", messages=MESSAGES, stream=True)
    async with stream:
        await anext(aiter(stream))


async def _cancel(client: openai.AsyncOpenAI) -> None:
    has_begun = asyncio.Event()

    async def read() -> None:
        async for _ in await client.chat.completions.create(model="m1", messages=MESSAGES, stream=True):
            has_begun.set()

    task = asyncio.create_task(read())
    await has_begun.wait()
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("leave", [_close, _leave_block, _cancel], ids=["close", "leave-block", "cancel"])
async def test_leaving_a_stream_closes_the_replicas_call(leave: Callable[[openai.AsyncOpenAI], Any]) -> None:
    """Each way there is to do it."""
    async with FakeReplica(hangs(delta("one"))) as replica, client_of(replica) as client:
        await leave(client)
        await until(lambda: replica.num_aborted == 1)


async def test_a_stream_that_breaks_is_an_error() -> None:
    """An ending is never made up: the client sees that there is none, after what came."""

    async def breaks(call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        await call.chunk(delta("one"))
        call.close()

    texts: list[str | None] = []

    async def read(client: openai.AsyncOpenAI) -> None:
        async for chunk in await client.chat.completions.create(model="m1", messages=MESSAGES, stream=True):
            texts.append(chunk.choices[0].delta.content)  # noqa: PERF401 - what came before it breaks counts

    async with FakeReplica(breaks) as replica, client_of(replica) as client:
        with pytest.raises(openai.APIError):
            await read(client)
    assert texts == ["one"]


async def test_tools_travel_untouched_both_ways() -> None:
    """The bytes that the package wrote, and its own reading of the calls, whole and in pieces."""
    message = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
    answer = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    pieces = [
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Zürich"}'}}]},
    ]
    chunks = [event({"id": "c", "choices": [{"index": 0, "delta": piece, "finish_reason": None}]}) for piece in pieces]
    async with FakeReplica(_answers(answer)) as replica, client_of(replica) as client:
        whole = await client.chat.completions.create(
            model="m1", messages=MESSAGES, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
        )
        calls = whole.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].to_dict() == TOOL_CALL
        assert json.loads(replica.received[0].body) == {
            "model": "m1",
            "messages": MESSAGES,
            "tools": TOOLS,
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
        replica.behaviour = streams(*chunks, finish("tool_calls"), DONE)
        stream = await client.chat.completions.create(model="m1", messages=MESSAGES, tools=TOOLS, stream=True)
        arguments = ""
        async for chunk in stream:
            for call in chunk.choices[0].delta.tool_calls or ():
                assert call.function is not None
                arguments += call.function.arguments or ""
        assert arguments == TOOL_CALL["function"]["arguments"]


async def test_embeddings() -> None:
    """The package asks for base64 by itself, and decodes what comes back."""
    packed = {"object": "embedding", "index": 0, "embedding": "AACAPwAAAEA="}
    answer = {"object": "list", "model": "m1", "data": [packed], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    async with FakeReplica(_answers(answer), owned_by="someone") as replica, client_of(replica) as client:
        result = await client.embeddings.create(model="m1", input="hi")
        assert result.data[0].embedding == [1.0, 2.0]
        assert json.loads(replica.received[0].body)["encoding_format"] == "base64"


async def test_responses() -> None:
    """Typed events, with their names, read to the end by the package's own state machine."""
    response = {"id": "r", "object": "response", "created_at": 1, "model": "m1", "output": [], "status": "in_progress"}
    done = response | {
        "status": "completed",
        "output": [
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "hello", "annotations": []}],
            }
        ],
        "usage": {
            "input_tokens": 3,
            "output_tokens": 1,
            "total_tokens": 4,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    at = {"item_id": "m", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.output_text.delta", "delta": "hello", "logprobs": [], **at},
        {"type": "response.completed", "response": done},
    ]
    named = [
        b"event: %b\n" % each["type"].encode() + event(each | {"sequence_number": index})
        for index, each in enumerate(events)
    ]
    async with FakeReplica(streams(*named), owned_by="someone") as replica, client_of(replica) as client:
        stream = await client.responses.create(model="m1", input="hi", stream=True)
        received = [each async for each in stream]
        assert [each.type for each in received] == [each["type"] for each in events]
        replica.behaviour = _answers(done)
        assert (await client.responses.create(model="m1", input="hi")).output_text == "hello"


async def test_the_timing_comment_is_passed_over() -> None:
    """`x-tailgate-timing: stream` puts a line into the stream that the package doesn't take for an event."""
    async with FakeReplica(streams(delta("one"), finish(), DONE)) as replica, client_of(replica) as client:
        stream = await client.chat.completions.create(
            model="m1", messages=MESSAGES, stream=True, extra_headers={"x-tailgate-timing": "stream"}
        )
        assert [chunk.choices[0].finish_reason async for chunk in stream] == [None, "stop"]
        raw = client.chat.completions.with_streaming_response.create(
            model="m1", messages=MESSAGES, stream=True, extra_headers={"x-tailgate-timing": "stream"}
        )
        async with raw as response:
            lines = [line async for line in response.iter_lines()]
        assert sum(line.startswith(": tailgate {") for line in lines) == 1


async def test_a_form_with_a_sound() -> None:
    """The package's own form, with an alias in it: only the model's name changes, and the sound arrives as it was."""
    sound = bytes(range(256)) * 4096
    models = [{"name": "m1", "aliases": ["whisper-1"]}]
    async with (
        FakeReplica(_answers({"text": "hello"}), owned_by="someone") as replica,
        client_of(replica, models=models) as client,
    ):
        answer = await client.audio.transcriptions.create(
            model="whisper-1", file=("a.wav", sound, "audio/wav"), language="de"
        )
        assert answer.text == "hello"
        received = replica.received[0]
        assert sound in received.body
        assert b'name="model"\r\n\r\nm1\r\n' in received.body
        assert b"whisper-1" not in received.body


async def test_a_sound_in_pieces() -> None:
    """Bytes that are no text, in a response that is read as it comes."""
    pieces = [bytes(range(256)) * 64, b"\r\n\r\n", bytes(reversed(range(256)))]

    async def behave(call: Call) -> None:
        await call.head(headers=[("content-type", "audio/mpeg")])
        for piece in pieces:
            await call.chunk(piece)
        await call.end()

    async with FakeReplica(behave, owned_by="someone") as replica, client_of(replica) as client:
        request = client.audio.speech.with_streaming_response.create(model="m1", input="hi", voice="alloy")
        async with request as response:
            assert b"".join([piece async for piece in response.iter_bytes()]) == b"".join(pieces)


async def test_the_synchronous_client() -> None:
    """It works with threads and closes its streams the same way."""

    def talk(url: str) -> str:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            client.chat.completions.create(model="m1", messages=MESSAGES)
            with client.chat.completions.create(model="m1", messages=MESSAGES, stream=True) as stream:
                return next(iter(stream)).choices[0].delta.content or ""

    kinds = iter([answers(), hangs(delta("one"))])

    async def behave(call: Call) -> None:
        await next(kinds)(call)

    async with FakeReplica(behave) as replica, entrance_to(replica) as entrance:
        assert await asyncio.to_thread(talk, entrance.url) == "one"
        await until(lambda: replica.num_aborted == 1)
