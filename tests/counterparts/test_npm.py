"""The npm package `openai` through the gateway, in node, to doubles."""

import json

from tests.support.fake_replica import DONE, Call, FakeReplica, delta, finish, streams
from tests.support.serve import until

from .entrance import entrance_to
from .npm_client import needs_npm_package, told_by

pytestmark = needs_npm_package

TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


class Double:
    """Does what the message says."""

    def __init__(self) -> None:
        self.num_later = 0

    async def __call__(self, call: Call) -> None:
        if call.received.path == "/v1/audio/transcriptions":
            await call.whole(b'{"text":"hello"}')
            return
        wish = json.loads(call.received.body)["messages"][0]["content"]
        if wish in ("hang", "break"):
            await call.head(headers=[("content-type", "text/event-stream")])
            await call.chunk(delta("one"))
        if wish in ("hang", "silence"):
            await call.gone.wait()
        elif wish == "words":
            await streams(delta("one"), finish(), DONE)(call)
        elif wish == "break":
            call.close()
        elif wish == "refuse":
            await _refuse(call, 400, code="c1", param="p1")
        elif wish == "limit":
            await _refuse(call, 429, code="rate_limit_exceeded")
        elif wish == "later" and self.num_later == 0:
            self.num_later += 1
            await _refuse(call, 503)
        else:
            message = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
            answer = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
            await call.whole(json.dumps(answer).encode())


async def _refuse(call: Call, status: int, **error: str) -> None:
    body = {"error": {"message": "no", "type": "t", "param": None, "code": None} | error}
    await call.whole(json.dumps(body).encode(), status=status)


async def test_leaving_closes_the_replicas_call() -> None:
    """By leaving the loop, by the controller, by a timeout of the client's own."""
    async with FakeReplica(Double()) as replica, entrance_to(replica) as entrance:
        told = await told_by(entrance, "leave", "abort", "timeout")
        assert (told["leave"], told["abort"], told["timeout"]["name"]) == ("one", "one", "APIConnectionTimeoutError")
        await until(lambda: replica.num_aborted == 3)


async def test_errors_are_the_packages_own_classes() -> None:
    """A replica's, the gateway's, a stream that breaks; its retry is answered, tools come back."""
    async with FakeReplica(Double()) as replica, entrance_to(replica) as entrance:
        told = await told_by(entrance, "refused", "limited", "unknown", "broken", "retry", "tools", "models")
        assert told["refused"] == {"name": "BadRequestError", "status": 400, "code": "c1", "param": "p1"}
        assert (told["limited"]["name"], told["limited"]["status"]) == ("RateLimitError", 429)
        assert (told["unknown"]["name"], told["unknown"]["code"]) == ("NotFoundError", "model_not_found")
        assert told["broken"]["text"] == "one"
        assert told["broken"]["error"] is not None
        assert told["retry"] == 200
        assert told["tools"] == [TOOL_CALL]
        assert told["models"] == ["m1"]


async def test_forms_and_comments() -> None:
    """The package's own form with an alias in it; a stream with a comment of the gateway's."""
    models = [{"name": "m1", "aliases": ["whisper-1"]}]
    async with FakeReplica(Double(), owned_by="someone") as replica, entrance_to(replica, models=models) as entrance:
        told = await told_by(entrance, "sound", "timed")
        assert told == {"sound": "hello", "timed": [None, "stop"]}
        received = replica.received[0]
        assert b"\x07" * (1 << 20) in received.body
        assert b"whisper-1" not in received.body
