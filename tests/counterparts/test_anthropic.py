"""The Python package `anthropic` through the gateway to doubles."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.support.fake_messages import FakeMessages
from tests.support.fake_replica import Call, FakeReplica
from tests.support.keys import write_keys
from tests.support.serve import until

from .anthropic_client import MESSAGES, anthropic_client
from .entrance import entrance_to


@asynccontextmanager
async def client_of(
    *replicas: FakeReplica, key: str = "none", max_retries: int = 0, **config: Any
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """A client of a gateway in front of these."""
    async with entrance_to(*replicas, **config) as entrance, anthropic_client(entrance, key, max_retries) as client:
        yield client


async def test_events_and_their_snapshot() -> None:
    """Thinking, text, input of a tool: what the package makes of the events is what the replica sent."""
    async with FakeMessages() as replica, client_of(replica) as client:
        async with client.messages.stream(model="m1", messages=MESSAGES, max_tokens=9) as stream:
            kinds = [event.type async for event in stream]
        assert kinds[0] == "message_start"
        assert kinds[-1] == "message_stop"
        assert kinds.count("content_block_delta") == 6
        received = replica.received[-1]
        assert len(received.header("anthropic-version")) == 1
        sent = received.header("x-api-key") + received.header("authorization")
        assert [each.removeprefix("Bearer ") for each in sent] == ["none"]
        assert json.loads(received.body)["stream"] is True
        counted = await client.messages.count_tokens(model="m1", messages=MESSAGES)
        assert counted.input_tokens == 7


async def test_the_timing_comment_is_passed_over() -> None:
    """`x-tailgate-timing: stream` puts a line into the stream that the package doesn't take for an event."""
    async with FakeMessages() as replica, client_of(replica) as client:
        more = {"x-tailgate-timing": "stream"}
        async with client.messages.stream(model="m1", messages=MESSAGES, max_tokens=9, extra_headers=more) as stream:
            assert [event.type async for event in stream][-1] == "message_stop"
            assert (await stream.get_final_message()).stop_reason == "end_turn"


async def test_the_list_of_models() -> None:
    """It is OpenAI's, and the package can read it."""
    async with FakeMessages() as replica, client_of(replica) as client:
        assert [model.id async for model in client.models.list(limit=5)] == ["m1"]
        assert (await client.models.retrieve("m1")).id == "m1"


async def test_leaving_closes_the_replicas_call() -> None:
    """The stream's block is left in the middle."""
    async with FakeMessages() as replica, client_of(replica) as client:
        replica.may_go_on.clear()
        async with client.messages.stream(model="m1", messages=MESSAGES, max_tokens=9) as stream:
            await anext(aiter(stream))
        await until(lambda: replica.num_aborted == 1)


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.RequestTooLargeError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.OverloadedError),
    ],
)
async def test_a_replicas_error_is_the_exception_it_would_be_without_a_gateway(
    status: int, kind: str, expected: type[anthropic.APIStatusError]
) -> None:
    """Class, type and message of the replica's."""

    async def behave(call: Call) -> None:
        error = {"type": "error", "error": {"type": kind, "message": "no"}}
        await call.whole(json.dumps(error).encode(), status=status)

    async with FakeReplica(behave, owned_by="vllm") as replica, client_of(replica) as client:
        with pytest.raises(expected) as error:
            await client.messages.create(model="m1", messages=MESSAGES, max_tokens=9)
        assert (error.value.status_code, error.value.type) == (status, kind)


async def test_errors_of_the_gateways_own(tmp_path: Path) -> None:
    """Key, model, limit, a replica that is gone: in Anthropic's shape, so its own classes and types come out."""
    write_keys(tmp_path / "keys.json", one={"requests_per_min": 1}, free={})
    async with FakeMessages() as replica, client_of(replica, key="sk-one", keys=str(tmp_path / "keys.json")) as client:
        await client.messages.create(model="m1", messages=MESSAGES, max_tokens=9)
        with pytest.raises(anthropic.RateLimitError) as limited:
            await client.messages.create(model="m1", messages=MESSAGES, max_tokens=9)
        assert limited.value.type == "rate_limit_error"
        assert int(limited.value.response.headers["retry-after"]) >= 1
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            await client.with_options(api_key="sk-x").messages.create(model="m1", messages=MESSAGES, max_tokens=9)
        assert unknown.value.type == "authentication_error"
        free = client.with_options(api_key="sk-free")
        with pytest.raises(anthropic.NotFoundError) as missing:
            await free.messages.create(model="m9", messages=MESSAGES, max_tokens=9)
        assert missing.value.type == "not_found_error"

        async def close(call: Call) -> None:
            call.close()

        replica.behaviour = close
        with pytest.raises(anthropic.InternalServerError) as gone:
            await free.messages.create(model="m1", messages=MESSAGES, max_tokens=9)
        assert (gone.value.status_code, gone.value.type) == (502, "api_error")
