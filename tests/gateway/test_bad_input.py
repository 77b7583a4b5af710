"""What clients get wrong is told in OpenAI's shape, costs nothing, and reaches no replica."""

import asyncio
import json
from typing import Any

import pytest

from gateway.api.fields import RequestFields, read_chat, read_completions
from gateway.errors import BadRequest
from gateway.overload_errors import Overloaded
from policies.types import Reason
from tests.support.asgi import HandDriven
from tests.support.fake_replica import FakeReplica, answers, hangs
from tests.support.gateways import BODY, CHAT, assert_nothing_held, chat_body, gateway_for
from tests.support.serve import RawClient, ask, serving, until

COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def _deep(levels: int) -> bytes:
    return b'{"model":"m1","messages":[{"role":"user","content":"hi"}],"x":' + b"[" * levels + b"]" * levels + b"}"


BAD: list[tuple[str, bytes, str | None]] = [
    (CHAT, b"", None),
    (CHAT, b"{", None),
    (CHAT, b"[]", None),
    (CHAT, b"null", None),
    (CHAT, b'\xff\xfe{"model":"m1"}', None),
    (CHAT, '{"model":"m1"}'.encode("utf-16"), None),
    (CHAT, chat_body(temperature=float("nan")), None),
    (CHAT, chat_body(x=float("inf")), None),
    (CHAT, b'{"model":"m1","messages":[{"role":"user","content":"\\ud800"}]}', None),
    (CHAT, _deep(64), None),
    (CHAT, _deep(900), None),
    (CHAT, chat_body(model=3), "model"),
    (CHAT, b'{"model":"m1"}', "messages"),
    (CHAT, chat_body(messages=None), "messages"),
    (CHAT, chat_body(messages=[]), "messages"),
    (CHAT, chat_body(messages="hi"), "messages"),
    (CHAT, chat_body(messages=["hi"]), "messages[0]"),
    (CHAT, chat_body(messages=[{"content": "x"}]), "messages[0].role"),
    (CHAT, chat_body(messages=[*MESSAGES, {"role": "user", "content": 3}]), "messages[1].content"),
    (CHAT, chat_body(stream="yes"), "stream"),
    (CHAT, chat_body(max_tokens="ten"), "max_tokens"),
    (CHAT, chat_body(max_tokens=1.5), "max_tokens"),
    (CHAT, chat_body(max_completion_tokens=True), "max_completion_tokens"),
    (CHAT, chat_body(n=0), "n"),
    (CHAT, chat_body(priority="high"), "priority"),
    (CHAT, chat_body(tools={}), "tools"),
    (CHAT, chat_body(stream_options=[]), "stream_options"),
    (COMPLETIONS, b'{"model":"m1"}', "prompt"),
    (COMPLETIONS, b'{"model":"m1","prompt":[]}', "prompt"),
    (COMPLETIONS, b'{"model":"m1","prompt":[1,"a"]}', "prompt"),
    (COMPLETIONS, b'{"model":"m1","prompt":[[1],[]]}', "prompt"),
    (COMPLETIONS, b'{"model":"m1","prompt":[[1],[true]]}', "prompt"),
    (COMPLETIONS, b'{"model":"m1","prompt":{}}', "prompt"),
]


async def test_bad_bodies() -> None:
    """Each gets 400 with the field's name, on a connection that goes on to serve the next request."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        for path, body, param in BAD:
            reply = await ask(port, path, body)
            error = json.loads(reply.body)["error"]
            assert reply.status == 400, body[:80]
            assert error.keys() == {"message", "type", "param", "code"}
            assert (error["type"], error["param"]) == ("invalid_request_error", param), body[:80]
            assert reply.header(b"content-type") == [b"application/json"]
            assert "Error" not in error["message"]
        assert replica.received == []
        assert_nothing_held(gateway)
        assert {record.outcome for record in gateway.ring._records.values()} == {"bad-request"}
        assert (await ask(port, CHAT, BODY)).status == 200


async def test_an_unknown_model() -> None:
    """404 with OpenAI's code and the names that are served; none is counted as a label."""
    async with FakeReplica(answers(), models=("m1", "m2")) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start(chat_body(model="nope"))
        await request.ended()
        error = json.loads(request.body)["error"]
        assert (request.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "m1" in error["message"]
        assert "m2" in error["message"]
        assert next(iter(gateway.ring._records.values())).model == ""


async def test_a_model_that_may_come_is_not_unknown() -> None:
    """While a replica's models aren't known, or none that serves it is up, waiting helps: 503, not 404."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        gateway.pool.get("r1").models = frozenset()
        request = HandDriven(gateway, CHAT).start(BODY)
        await request.ended()
        assert request.status == 503
        assert dict(request.headers)[b"retry-after"] == b"1"
        assert dict(request.headers)[b"x-tailgate-reason"] == b"no-replica"


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_that_is_too_large(is_chunked: bool) -> None:
    """413 and the end of the connection, with or without a length; not a byte more is kept than allowed."""
    limits: dict[str, Any] = {"limits": {"max_body_bytes": 1000}}
    async with FakeReplica(answers()) as replica, gateway_for(replica, **limits) as gateway, serving(gateway) as port:
        framing = "transfer-encoding: chunked" if is_chunked else "content-length: 10000000"
        head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\n{framing}\r\n\r\n".encode()
        body = b"800\r\n" + b"x" * 2048 + b"\r\n" if is_chunked else b"x" * 2048
        async with RawClient(port, head + body) as client:
            await client.read_all()
        assert client.status == 413
        assert client.header(b"connection") == [b"close"]
        assert json.loads(client.body)["error"]["code"] == "request_too_large"
        assert_nothing_held(gateway)


async def test_a_body_that_never_comes() -> None:
    """408 after the receive timeout, and the end of the connection."""
    timeouts: dict[str, Any] = {"timeouts": {"receive_s": 0.05}}
    async with FakeReplica(answers()) as replica, gateway_for(replica, **timeouts) as gateway:
        request = HandDriven(gateway, CHAT).start()
        request.receive(b"{", more=True)
        await request.ended()
        assert request.status == 408
        assert (b"connection", b"close") in request.headers


async def test_other_things_that_are_refused() -> None:
    """Another method, an unknown lane."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT, method="GET").start(b"")
        await request.ended()
        assert (request.status, dict(request.headers)[b"allow"]) == (405, b"POST")
        request = HandDriven(gateway, CHAT, headers=[(b"x-tailgate-lane", b"\xffvip")]).start(BODY)
        await request.ended()
        error = json.loads(request.body)["error"]
        assert (request.status, error["param"]) == (400, "x-tailgate-lane")
        assert "interactive" in error["message"]
        request = HandDriven(gateway, CHAT, headers=[(b"x-tailgate-timing", b"yes")]).start(BODY)
        await request.ended()
        error = json.loads(request.body)["error"]
        assert (request.status, error["param"]) == (400, "x-tailgate-timing")
        assert error["message"] == "`x-tailgate-timing` must be: stream."
        request = HandDriven(gateway, CHAT, headers=[(b"x-a", b"1\r\nx-injected: 2")]).start(BODY)
        await request.ended()
        assert request.status == 400
        assert replica.received == []


async def test_no_header_value_repeats_what_the_client_sent() -> None:
    """Names and texts of the client appear in no header of the answer, whatever it is."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        canary = "CANARY"
        headers = [(b"x-request-id", canary.encode()), (b"x-tailgate-reason", canary.encode())]
        for body in (chat_body(model=canary), chat_body(user=canary), canary.encode()):
            request = HandDriven(gateway, CHAT, headers=headers).start(body)
            await request.ended()
            assert canary.encode() not in b"".join(name + value for name, value in request.headers)


async def test_a_full_queue_and_a_wait_that_is_too_long() -> None:
    """429 when the queue is full, 503 when the wait was too long, both with Retry-After and the reason."""
    options: dict[str, Any] = {
        "policy": {"options": {"fixed": {"in_flight_tokens": 1}, "queue": {"max_requests": 1}}},
        "timeouts": {"queue_s": 0.2},
    }
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **options) as gateway:
        running = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: replica.num_running == 1)
        waiting = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: gateway.core.num_queued == 1)
        refused = HandDriven(gateway, CHAT).start(BODY)
        await refused.ended()
        assert (refused.status, dict(refused.headers)[b"x-tailgate-reason"]) == (429, b"queue-full")
        assert int(dict(refused.headers)[b"retry-after"]) >= 1
        assert json.loads(refused.body)["error"]["type"] == "rate_limit_error"
        await waiting.ended()
        assert (waiting.status, dict(waiting.headers)[b"x-tailgate-reason"]) == (503, b"queue-timeout")
        assert [record.outcome for record in gateway.ring._records.values()] == ["rejected", "evicted"]
        running.disconnect()
        await running.ended()
        assert_nothing_held(gateway)


async def test_a_fault_of_our_own() -> None:
    """500 in our shape without a word of the exception, everything given back."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:

        async def count(*_: object, **__: object) -> None:
            raise RuntimeError("CANARY")

        gateway.tokens.count = count  # type: ignore[method-assign, assignment]
        request = HandDriven(gateway, CHAT).start(BODY)
        await request.ended()
        assert request.status == 500
        assert b"CANARY" not in request.body
        assert_nothing_held(gateway)


def test_retry_after_is_whole_seconds() -> None:
    """Rounded up, never zero."""
    assert dict(Overloaded(Reason.QUEUE_FULL, 0.2).headers())[b"retry-after"] == b"1"
    assert dict(Overloaded(Reason.DRAINING, 2.1).headers())[b"retry-after"] == b"3"


def _fields(route: str = "chat", **fields: Any) -> RequestFields:
    if route == "completions":
        return read_completions(json.dumps(fields).encode(), [], 64)
    return read_chat(json.dumps({"messages": MESSAGES} | fields).encode(), [], 64)


def test_the_fields_that_scheduling_needs() -> None:
    """Bounds are over all choices of all prompts; priority turns its sign; nulls are as if absent."""
    assert _fields(max_tokens=10).max_output_tokens == 10
    assert _fields(max_tokens=10, max_completion_tokens=5, n=3).max_output_tokens == 15
    assert _fields(max_tokens=None, n=None, stream=None, model=None, tools=None, stream_options=None).num_choices == 1
    assert _fields(max_tokens=-1).max_output_tokens is None
    assert _fields(max_tokens=3.0).max_output_tokens == 3
    assert _fields(max_tokens=10**30).max_output_tokens == 2**31 - 1
    assert _fields(priority=5).priority == -5
    assert _fields(stream=True, stream_options={"include_usage": True}).include_usage
    assert _fields("completions", prompt=["a", "b"], n=2, best_of=3, max_tokens=7).max_output_tokens == 42
    assert _fields("completions", prompt=[1, 2, 3]).num_choices == 1
    assert _fields("completions", prompt=[[1], [2, 3]]).num_choices == 2
    assert _fields("completions", prompt_embeds="AAAA").prompt is None
    assert _fields(messages=[{"role": "user", "content": None}, {"role": "user", "content": [{"type": "text"}]}])


def test_depth_is_counted_in_levels() -> None:
    """Many brackets side by side are not deep; one level too many is."""
    read_chat(json.dumps({"messages": MESSAGES * 100}).encode(), [], 3)
    with pytest.raises(BadRequest):
        read_chat(json.dumps({"messages": [*MESSAGES * 100], "x": [[[]]]}).encode(), [], 3)


async def test_the_body_may_come_in_pieces() -> None:
    """Any number of pieces, empty ones too, make one body."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start()
        for index in range(len(BODY)):
            request.receive(BODY[index : index + 1], more=True)
        request.receive(b"")
        await request.ended()
        assert request.status == 200
        assert replica.received[0].body == BODY
        await asyncio.sleep(0)
