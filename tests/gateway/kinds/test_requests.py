"""What clients really send: odd but good bodies pass as they are, bad ones are told why in the API's own shape."""

import json
from typing import Any

import pytest

from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import CHAT, assert_nothing_held, gateway_for
from tests.support.serve import ask, serving

MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


def chat(more: bytes) -> bytes:
    return b'{"model":"m1",' + MESSAGES + more + b"}"


GOOD = {
    "nulls": chat(
        b',"stream":null,"max_tokens":null,"n":null,"stop":null,"tools":null,"stream_options":null,"user":null'
    ),
    "numbers that no double holds": chat(b',"seed":123456789012345678901234567890,"x":1e400,"y":-1E-999,"z":0.1000'),
    "a bound of none": chat(b',"max_tokens":0'),
    "a bound below none": chat(b',"max_tokens":-1'),
    "a bound beyond all": chat(b',"max_tokens":99999999999999999999'),
    "a bound with a point": chat(b',"max_tokens":16.0'),
    "very many choices": chat(b',"n":1000000'),
    "a member twice": chat(b',"temperature":0,"temperature":1'),
    "the model twice": b'{"model":"m1",' + MESSAGES + b',"model":"m1"}',
    "escapes in names": chat(b',"\\u0078":"\\ud83d\\ude00\\u0000\\/"'),
    "spaces everywhere": b' \r\n\t{ "model" : "m1" ,\n' + MESSAGES + b" } \n",
    "a tool's answer and no content": b'{"model":"m1","messages":[{"role":"assistant","tool_calls":[]},{"role":"tool",'
    b'"tool_call_id":"t","content":"1"},{"role":"developer","content":[{"type":"text","text":"a"}],"name":"b"}]}',
    "a picture": b'{"model":"m1","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":'
    b'"data:,"}}]}]}',
    "an unknown part": b'{"model":"m1","messages":[{"role":"user","content":[{"type":"x_new","x":[1]}]}]}',
    "unknown members of any depth": chat(
        b',"chat_template_kwargs":{"a":[{"b":null}]},"guided_json":{},"cache_salt":"s"'
    ),
    "tools that aren't functions": chat(b',"tools":[{"type":"web_search"}],"tool_choice":"auto"'),
}


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "text/plain", ""])
@pytest.mark.parametrize("name", GOOD)
async def test_odd_bodies_pass_as_they_are(name: str, content_type: str) -> None:
    """Byte for byte, with the content type they came with: what they mean is the replica's business."""
    headers = [("content-type", content_type)] if content_type else []
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        assert (await ask(port, CHAT, GOOD[name], *headers)).status == 200
        (received,) = replica.received
        assert received.body == GOOD[name]
        assert received.header("content-type") == ([content_type] if content_type else [])
        assert_nothing_held(gateway)


COMPLETIONS: dict[str, Any] = {
    "text": "a",
    "no text": "",
    "texts": ["a", "b"],
    "token ids": [1, 2, 3],
    "several of ids": [[1, 2], [3]],
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize("name", COMPLETIONS)
async def test_every_form_of_a_prompt_passes(name: str, path: str) -> None:
    """Text, token ids, and lists of either, as benchmarks and evaluation harnesses send them."""
    member = "prompt" if path == "/v1/completions" else "input"
    body = json.dumps({"model": "m1", member: COMPLETIONS[name], "stream": False}).encode()
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        assert (await ask(port, path, body)).status == 200
        assert replica.received[0].body == body


BAD = {
    "nothing": b"",
    "a null byte": b"\0",
    "a list": b"[]",
    "a bare null": b"null",
    "a form": b"model=m1&messages=hi",
    "half of it": b'{"model":"m1","messages":[',
    "a comma too many": chat(b","),
    "two of them": chat(b"") + chat(b""),
    "single quotes": b"{'model':'m1'}",
    "a byte order mark": b"\xef\xbb\xbf" + chat(b""),
    "UTF-16": chat(b"").decode().encode("utf-16-le"),
    "not UTF-8": chat(b',"x":"\xff\xfe"'),
    "a raw line break": chat(b',"x":"a\nb"'),
    "NaN": chat(b',"x":NaN'),
    "Infinity": chat(b',"x":-Infinity'),
    "half a surrogate pair": chat(b',"x":"\\ud83d"'),
    "deep nesting": chat(b',"x":' + b"[" * 100_000 + b"]" * 100_000),
    "deep objects": chat(b',"x":' + b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "no messages": b'{"model":"m1"}',
    "messages of null": b'{"model":"m1","messages":null}',
    "no message in them": b'{"model":"m1","messages":[]}',
    "text for messages": b'{"model":"m1","messages":"hi"}',
    "null for a message": b'{"model":"m1","messages":[null]}',
    "a message without a role": b'{"model":"m1","messages":[{"content":"a"}]}',
    "a number for content": b'{"model":"m1","messages":[{"role":"user","content":7}]}',
    "text for a flag": chat(b',"stream":"true"'),
    "a number for a flag": chat(b',"stream":1'),
    "text for a number": chat(b',"max_tokens":"5"'),
    "half a token": chat(b',"max_tokens":1.5'),
    "a flag for a number": chat(b',"n":true'),
    "no choice at all": chat(b',"n":0'),
    "options that are none": chat(b',"stream":true,"stream_options":5'),
    "a priority in words": chat(b',"priority":"high"'),
    "a number for the model": b'{"model":5,' + MESSAGES + b"}",
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_bodies_are_told_why(name: str) -> None:
    """400 in OpenAI's shape, without a trace of what is inside; nothing is sent on, and the connection goes on."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, BAD[name], ("content-type", "application/json"))
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["type"]) == (400, "invalid_request_error")
        assert reply.header(b"content-type") == [b"application/json"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert not any(word in error["message"] for word in ("Traceback", "Error", "orjson", "surrogates"))
        assert not reply.header(b"connection")
        assert replica.received == []
        assert_nothing_held(gateway)


NAMES = ["m1\r\nx-evil: 1", "../../etc/passwd", "m1\0", " m1", "M1", "日本語", "é" * 100_000, "${jndi:x}", "m1\u2028"]


@pytest.mark.parametrize("model", NAMES, ids=range(len(NAMES)))
async def test_names_of_models_are_compared_and_never_used(model: str) -> None:
    """Whatever a name holds, it is unknown, and neither a header nor a metric has any of it."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, body)
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert len(reply.body) < 2000
        assert not reply.header(b"x-evil")
        page = gateway.metrics.render()[0].decode()
        assert not any(part in page for part in ("evil", "passwd", "日本", "ééé", "jndi", "M1"))
        assert replica.received == []


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/v1/messages", {"type": "error", "error": {"type": "invalid_request_error"}}),
        ("/v1/messages/count_tokens", {"type": "error", "error": {"type": "invalid_request_error"}}),
        ("/generate", {"error_type": "validation"}),
        ("/v1/responses", {"error": {"type": "invalid_request_error"}}),
        ("/v1/rerank", {"error": {"type": "invalid_request_error"}}),
    ],
)
async def test_each_api_is_told_in_its_own_words(path: str, wanted: dict[str, Any]) -> None:
    """Its clients would not find the message in another shape."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, path, b"{")
        told = json.loads(reply.body)
        assert reply.status == (422 if path == "/generate" else 400)
        assert {name: type(value) for name, value in told.items()}.keys() >= wanted.keys()
        for name, value in wanted.items():
            assert told[name] == value if isinstance(value, str) else value.items() <= told[name].items()
        assert replica.received == []
