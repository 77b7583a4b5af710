"""The streams of each API: where the first token is, what is counted, what is an error; and nothing of it changes."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.routes import BY_PATH
from gateway.api.streams import (
    GenerateScanner,
    MessagesScanner,
    ResponsesScanner,
    read_generate_usage,
    read_messages_usage,
    read_named_usage,
)
from gateway.sse import StreamScanner
from gateway.usage import Usage, usage_of_answer
from tests.support.asgi import HandDriven
from tests.support.fake_messages import CLOSING, CONTENT, OPENING, STREAM, FakeMessages, content_delta, named_event
from tests.support.fake_replica import DONE, FakeReplica, delta, streams
from tests.support.fake_tgi import MODEL, WORDS, FakeTgi, tgi_event, token_event
from tests.support.gateways import assert_nothing_held, gateway_for
from tests.support.serve import RawClient, ask, post, serving, until

TEXTS = st.sampled_from(
    ["", "a", '"', '""', '"signature_delta"', '"error":', "\n\n", '"generated_text":null', "é😀", '{"type":"error"}']
)


def response_event(kind: str, **data: Any) -> bytes:
    return named_event(f"response.{kind}", **data)


RESPONSE_EVENTS = st.one_of(
    TEXTS.map(lambda text: response_event("output_text.delta", delta=text, item_id="x")),
    TEXTS.map(lambda text: response_event("function_call_arguments.delta", delta=text)),
    TEXTS.map(lambda text: named_event("speech.audio.delta", audio=text)),
    TEXTS.map(lambda text: response_event("output_text.done", text=text)),
    st.just(response_event("created", response={"usage": None})),
    st.just(response_event("completed", response={"usage": {"input_tokens": 4, "output_tokens": 2}})),
    st.just(response_event("failed", response={"error": {"code": "x"}})),
    st.just(named_event("error", message="x")),
    st.just(delta("as vLLM transcribes")),
    st.just(DONE),
)
MESSAGE_EVENTS = st.one_of(
    TEXTS.map(lambda text: content_delta(type="text_delta", text=text)),
    TEXTS.map(lambda text: content_delta(type="thinking_delta", thinking=text)),
    TEXTS.map(lambda text: content_delta(type="input_json_delta", partial_json=text)),
    TEXTS.map(lambda text: content_delta(type="signature_delta", signature=text)),
    st.sampled_from([*OPENING, *CLOSING]),
    st.just(named_event("error", error={"type": "overloaded_error", "message": "x"})),
    st.just(named_event("content_block_delta", delta=3)),
    st.just(content_delta(type="citations_delta", citation={"text": "x"})),
)
TOKEN_EVENTS = st.one_of(
    TEXTS.map(lambda text: token_event(1, text, None, {})),
    TEXTS.map(lambda text: token_event(2, text, (text,), {"inputs": "a b", "parameters": {"details": True}})),
    st.just(token_event(3, "<s>", None, {})),
    st.just(tgi_event({"error": "x", "error_type": "generation"})),
    st.just(tgi_event({"index": 1, "token": None})),
    st.just(b":\n\n"),
)


def _chunks(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of every event, read the plain way."""
    found = []
    for block in stream.split(b"\n\n"):
        data = b"\n".join(line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:"))
        if data and data != b"[DONE]":
            found.append(json.loads(data))
    return found


def _is_response_content(chunk: dict[str, Any]) -> bool:
    if "choices" in chunk:
        return any(choice["delta"].get("content") for choice in chunk["choices"])
    return chunk["type"].endswith(".delta") and bool(chunk.get("delta") or chunk.get("audio"))


def _is_message_content(chunk: dict[str, Any]) -> bool:
    piece = chunk.get("delta")
    if chunk["type"] != "content_block_delta" or not isinstance(piece, dict):
        return False
    return bool(piece.get("text") or piece.get("thinking") or piece.get("partial_json"))


def _is_token(chunk: dict[str, Any]) -> bool:
    token = chunk.get("token")
    return bool(token and token["text"] and not token["special"])


@pytest.mark.parametrize(
    ("scanner", "events", "is_content", "is_error"),
    [
        (
            ResponsesScanner,
            RESPONSE_EVENTS,
            _is_response_content,
            lambda c: c.get("type") in ("error", "response.failed"),
        ),
        (MessagesScanner, MESSAGE_EVENTS, _is_message_content, lambda c: c["type"] == "error"),
        (GenerateScanner, TOKEN_EVENTS, _is_token, lambda c: "error" in c),
    ],
)
def test_facts_are_those_of_a_plain_reading(
    scanner: type[StreamScanner],
    events: st.SearchStrategy[bytes],
    is_content: Callable[[dict[str, Any]], bool],
    is_error: Callable[[dict[str, Any]], bool],
) -> None:
    """However the stream is cut, content is counted and errors are seen as by a reader of every event's JSON."""

    @settings(max_examples=200, deadline=None)
    @given(st.lists(events, max_size=8), st.data())
    def check(chunks: list[bytes], data: st.DataObject) -> None:
        stream = b"".join(chunks)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        cut = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        for pieces in (chunks, [stream], cut):
            facts = scanner()
            for piece in pieces:
                facts.feed(piece)
            assert facts.num_content_chunks == sum(map(is_content, _chunks(stream)))
            assert facts.has_content == (facts.num_content_chunks > 0)
            assert facts.has_error == any(map(is_error, _chunks(stream)))

    check()


def _usage(scanner: StreamScanner, *pieces: bytes) -> Usage | None:
    for piece in pieces:
        scanner.feed(piece)
    return scanner.usage


def test_usage_in_streams() -> None:
    """Anthropic's comes in two parts, OpenAI's newer one inside an event, TGI's in the last token's details."""
    messages, tokens = MessagesScanner(), GenerateScanner()
    assert _usage(messages, STREAM) == Usage(7, 4, 2)
    assert messages.has_ended
    late = {"input_tokens": 9, "output_tokens": 3}
    assert _usage(MessagesScanner(), named_event("message_delta", delta={}, usage=late)) == Usage(9, 3)
    usage = {"input_tokens": 5, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 3}}
    assert _usage(ResponsesScanner(), response_event("completed", response={"usage": usage})) == Usage(5, 6, 3)
    asked = {"inputs": "a b", "parameters": {"details": True}}
    assert _usage(tokens, token_event(1, "a", None, asked), token_event(2, "b", ("a", "b"), asked)) == Usage(2, 2)
    assert tokens.has_ended


def test_usage_of_whole_answers() -> None:
    """The same in whole answers; what isn't there, or is of an odd type, is unsaid."""
    answer = {"usage": {"input_tokens": 5, "cache_creation_input_tokens": 1, "output_tokens": 3}}
    assert usage_of_answer(json.dumps(answer).encode(), read_messages_usage) == Usage(6, 3)
    assert usage_of_answer(b'{"usage":{"input_tokens":5,"output_tokens":3}}', read_named_usage) == Usage(5, 3)
    assert usage_of_answer(b'{"usage":{"prompt_tokens":5,"total_tokens":5}}', read_named_usage) == Usage(5)
    details = {"generated_tokens": 4, "prefill": [{"id": 1}, {"id": 2}]}
    assert read_generate_usage([{"details": details}]) == Usage(2, 4)
    for odd in (None, 3, [], [3], {}, {"usage": 3}, {"details": 3}, {"details": None}):
        assert read_messages_usage(odd) is None
        assert read_named_usage(odd) is None
        assert read_generate_usage(odd) is None
    assert read_messages_usage({"usage": {"input_tokens": "5"}}) == Usage()


GENERATE = b'{"inputs":"a b","parameters":{"details":true}}'
GENERATE_ROOT = GENERATE[:-1] + b',"stream":true}'
MESSAGES = b'{"model":"m1","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}'


def _tokens() -> bytes:
    asked = json.loads(GENERATE)
    last = len(WORDS)
    return b"".join(
        token_event(index, word, WORDS if index == last else None, asked) for index, word in enumerate(WORDS, start=1)
    )


CASES = [
    ("/v1/messages", MESSAGES, FakeMessages, STREAM, len(CONTENT), Usage(7, 4, 2)),
    ("/generate_stream", GENERATE, FakeTgi, _tokens(), len(WORDS) - 1, Usage(2, len(WORDS))),
    ("/", GENERATE_ROOT, FakeTgi, _tokens(), len(WORDS) - 1, Usage(2, len(WORDS))),
]


@pytest.mark.parametrize(("path", "body", "replica_class", "stream", "num_content", "usage"), CASES)
async def test_a_stream_passes_byte_for_byte_and_is_understood(
    path: str, body: bytes, replica_class: Any, stream: bytes, num_content: int, usage: Usage
) -> None:
    """First token, output tokens and cached tokens are those that the API says, and no byte differs."""
    async with replica_class() as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, path, body)
        assert (reply.status, reply.body, reply.is_complete) == (200, stream, True)
        record = list(gateway.ring._records.values())[-1]
        assert record.streams
        assert record.ttft_s is not None
        assert (record.output_tokens, record.cached_tokens) == (usage.output_tokens, usage.cached_tokens)
        assert record.outcome == "ok"
        assert num_content > 0
        assert_nothing_held(gateway)


@pytest.mark.parametrize(("path", "body", "replica_class", "stream", "num_content", "usage"), CASES)
async def test_leaving_in_the_middle_of_a_stream(
    path: str, body: bytes, replica_class: Any, stream: bytes, num_content: int, usage: Usage
) -> None:
    """After the first content the client goes: the replica's work is aborted and nothing stays held."""
    async with replica_class() as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        replica.may_go_on.clear()
        async with RawClient(port, post(path, body)) as client:
            await client.read_until(lambda: b"once" in client.body or b"hm" in client.body)
            assert gateway.core.num_in_flight == 1
            client.leave()
            await until(lambda: gateway.core.num_in_flight == 0)
        await until(lambda: replica.num_aborted == 1)
        assert list(gateway.ring._records.values())[-1].outcome == "client-left"
        assert stream.startswith(client.body)
        assert_nothing_held(gateway)


async def test_the_first_token_of_anthropics_stream_is_its_first_content() -> None:
    """Not the opening events, a ping or an empty delta; thinking counts."""
    async with FakeMessages() as replica, gateway_for(replica) as gateway:
        replica.may_go_on.clear()
        request = HandDriven(gateway, "/v1/messages").start(MESSAGES)
        await request.until(lambda: CONTENT[0] in request.body)
        (call,) = gateway.core._books.calls.values()
        assert call.call is not None
        await until(lambda: call.call is not None and call.call.prefill_tokens == 0)
        replica.may_go_on.set()
        await request.ended()
        assert request.body == STREAM
        assert_nothing_held(gateway)


@pytest.mark.parametrize(
    ("path", "body", "event"),
    [
        ("/v1/messages", MESSAGES, named_event("error", error={"type": "overloaded_error", "message": "x"})),
        ("/v1/responses", b'{"model":"m1","input":"a","stream":true}', response_event("failed", response={})),
    ],
)
async def test_an_error_event_makes_the_request_a_failed_one(path: str, body: bytes, event: bytes) -> None:
    """It passes as it came, and is counted as what it is."""
    kind = "vllm" if path == "/v1/messages" else "test"
    async with FakeReplica(streams(event), owned_by=kind) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, path).start(body)
        await request.ended()
        assert (request.status, request.body) == (200, event)
        assert next(iter(gateway.ring._records.values())).outcome == "failed"
        assert_nothing_held(gateway)


async def test_tgis_error_in_a_stream_is_passed_on_and_counted() -> None:
    """A 200 stream of one event with an error is no success, and speaks against nobody."""
    body = b'{"inputs":"a","parameters":{"max_new_tokens":0}}'
    async with FakeTgi() as tgi, gateway_for(tgi) as gateway:
        request = HandDriven(gateway, "/generate_stream").start(body)
        await request.ended()
        assert (request.status, json.loads(request.body[5:])["error_type"]) == (200, "validation")
        assert next(iter(gateway.ring._records.values())).outcome == "failed"
        assert gateway.pool.get("r1").models == {MODEL}
        assert_nothing_held(gateway)


async def test_responses_stream_has_its_first_token() -> None:
    """The first delta with text, not the events that announce it."""
    stream = (
        response_event("created", response={"usage": None}),
        response_event("output_text.delta", delta=""),
        response_event("output_text.delta", delta="hi"),
        response_event("output_text.delta", delta="ho"),
        response_event("completed", response={"usage": {"input_tokens": 2, "output_tokens": 2}}),
    )
    async with FakeReplica(streams(*stream)) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, "/v1/responses").start(b'{"model":"m1","input":"a","stream":true}')
        await request.ended()
        assert request.body == b"".join(stream)
        record = next(iter(gateway.ring._records.values()))
        assert (record.output_tokens, record.ttft_s is not None) == (2, True)


def test_every_route_that_streams_has_a_scanner_of_its_api() -> None:
    """The table's rows agree with the APIs' shapes."""
    assert BY_PATH["/v1/messages"].scanner is MessagesScanner
    assert {BY_PATH[path].scanner for path in ("/", "/generate", "/generate_stream")} == {GenerateScanner}
    assert BY_PATH["/v1/chat/completions"].scanner is StreamScanner
