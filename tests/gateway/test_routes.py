"""Every route of the table: what reaches the replica, what comes back, what is refused and in whose shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.api.routes import BY_PATH, ROUTES, Route
from gateway.app import Gateway
from gateway.replica_kinds import FEATURES
from tests.support.asgi import HandDriven
from tests.support.fake_messages import FakeMessages
from tests.support.fake_replica import Behaviour, Call, FakeReplica, Received, answers, hangs, streams
from tests.support.fake_tgi import INFO, MODEL, FakeTgi, tokenized
from tests.support.gateways import CHAT, assert_nothing_held, gateway_for
from tests.support.keys import bearer, write_keys
from tests.support.serve import RawClient, ask, post, serving, until

FORM_TYPE = ("content-type", "multipart/form-data; boundary=bb")
ODD = '"big":123456789012345678901234567890, "odd":[1e999,-0.0,1.10], "none":null, "none":{"x" : "\\u00e9\\/"}'


def form(model: str = "m1") -> bytes:
    """A form with a sound of all bytes."""
    sound = bytes(range(256)) * 8
    head = f'--bb\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n--bb\r\n'
    disposition = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    return head.encode() + disposition + sound + b"\r\n--bb--\r\n"


BODIES: dict[str, str] = {
    "chat": '"messages":[{"role":"user","content":"hi"}]',
    "completions": '"prompt":"hi"',
    "responses": '"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}],"instructions":"be kind"',
    "embeddings": '"input":["hi","ho"]',
    "pooling": '"input":"hi"',
    "classify": '"input":"hi"',
    "rerank": '"query":"q","documents":["a","b"]',
    "score": '"text_1":"a","text_2":["b"]',
    "speech": '"input":"say it","voice":"v"',
    "render": '"messages":[]',
    "tokenize": '"prompt":"hi"',
    "detokenize": '"tokens":[1,2]',
    "messages": '"max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"hi"}]',
    "count-tokens": '"messages":[{"role":"user","content":"hi"}]',
    "generate": '"inputs":"hi","parameters":{"max_new_tokens":3}',
    "info": "",
}


def body_of(route: Route, *, model: str | None = "m1") -> bytes:
    """A body with odd members, as the route takes it."""
    if route.name in ("transcriptions", "translations"):
        return form(model or "")
    if route.method == "GET":
        return b""
    named = "" if model is None or route.feature == "tgi" else f'"model" : "{model}", '
    return ("{ " + named + ODD + ", " + BODIES[route.name] + " }").encode()


def request_of(route: Route, body: bytes, *, path: str | None = None) -> bytes:
    request = post(path or route.path, body, *([FORM_TYPE] if b"form-data" in body else []))
    return request.replace(b"POST", route.method.encode(), 1)


ANSWER = b'{"object":"x", "big":98765432109876543210,"usage":{"prompt_tokens":3,"total_tokens":3} , "n":null}'


def replica_of(route: Route) -> FakeReplica:
    """A replica of a kind that can do it; it answers everything with the same odd JSON."""
    if route.feature == "tgi":
        return FakeReplica(by(_echo), pages={"/info": {**INFO, "model_id": "m1"}})
    return FakeReplica(by(_echo), owned_by="someone" if route.feature in FEATURES["openai"] else "vllm")


def by(behaviour: Behaviour) -> Behaviour:
    """That behaviour, while the gateway's own questions after token counts are answered."""

    async def behave(call: Call) -> None:
        if call.received.path == "/tokenize" and b'"big"' not in call.received.body:
            await call.whole(b'{"count":2,"tokens":[1,2]}')
        else:
            await behaviour(call)

    return behave


def sent_on(replica: FakeReplica) -> list[Received]:
    """What came of clients' requests, without the gateway's own questions."""
    return [each for each in replica.received if each.path != "/tokenize" or b'"big"' in each.body]


async def _echo(call: Call) -> None:
    await call.whole(ANSWER, headers=[("x-from", "replica")])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_bodies_travel_untouched_both_ways(route: Route) -> None:
    """To the constant path upstream, with the query; byte for byte what was sent; and the answer the same way."""
    body = body_of(route)
    async with replica_of(route) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        async with RawClient(port, request_of(route, body, path=route.path + "?beta=true&x=%2e")) as client:
            await client.read_all()
        assert client.status == 200, client.body
        if route.method == "GET":
            assert json.loads(client.body) == {**INFO, "model_id": "m1"}
        else:
            assert (client.body, client.header(b"x-from")) == (ANSWER, [b"replica"])
            received = sent_on(replica)[-1]
            assert received.path == (route.upstream_path or route.path) + "?beta=true&x=%2e"
            assert received.body == body
            assert received.header("content-type") == ([FORM_TYPE[1]] if b"form-data" in body else [])
        record = list(gateway.ring._records.values())[-1]
        assert (record.route, record.outcome, record.lane is None) == (route.name, "ok", route.is_light)
        assert_nothing_held(gateway)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.feature != "tgi"], ids=lambda route: route.path)
async def test_an_alias_or_nothing_becomes_the_replicas_own_name(route: Route) -> None:
    """Only the bytes of the model's value change; one that is missing is put in where the default is meant."""
    config: dict[str, Any] = {"models": [{"name": "m1", "aliases": ["gpt"]}], "default_model": "gpt"}
    async with replica_of(route) as replica, gateway_for(replica, **config) as gateway, serving(gateway) as port:
        for model in ("gpt", None):
            async with RawClient(port, request_of(route, body_of(route, model=model))) as client:
                await client.read_all()
            assert client.status == 200, client.body
            received = sent_on(replica)[-1]
            if model is None and route.method == "POST" and b"form-data" not in received.body:
                assert received.body == body_of(route, model=None).replace(b"{", b'{"model":"m1",', 1)
            else:
                assert received.body == body_of(route)
            assert received.header("content-length") == [str(len(received.body))]


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.is_light], ids=lambda route: route.path)
async def test_a_client_that_leaves_frees_its_place_on_every_route(route: Route) -> None:
    """The replica sees its connection close, whatever the API."""
    async with replica_of(route) as replica, gateway_for(replica) as gateway:
        replica.behaviour = by(hangs())
        request = HandDriven(gateway, route.path, headers=[(b"content-type", FORM_TYPE[1].encode())])
        request.start(body_of(route))
        await until(lambda: len(sent_on(replica)) == 1)
        assert gateway.core.num_in_flight == 1
        request.disconnect()
        await request.ended()
        await until(lambda: replica.num_aborted == 1)
        assert_nothing_held(gateway)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.is_light], ids=lambda route: route.path)
async def test_light_routes_take_no_slot_and_wait_for_nothing(route: Route) -> None:
    """With every slot taken and more waiting, they are answered at once; a client that leaves ends its call."""
    config: dict[str, Any] = {"policy": {"options": {"fixed": {"in_flight_tokens": 1}}}}
    async with replica_of(route) as replica, gateway_for(replica, **config) as gateway, serving(gateway) as port:
        replica.behaviour = by(hangs())
        busy = [HandDriven(gateway, CHAT).start(body_of(BY_PATH[CHAT])) for _ in range(2)]
        await until(lambda: len(sent_on(replica)) == 1 and gateway.core.num_queued == 1)
        replica.behaviour = by(_echo)
        async with RawClient(port, request_of(route, body_of(route))) as client:
            await client.read_all()
        assert client.status == 200
        assert gateway.core.num_in_flight == 1
        if route.method == "POST":
            replica.behaviour = by(hangs())
            leaving = HandDriven(gateway, route.path).start(body_of(route))
            await until(lambda: len(sent_on(replica)) == 3)
            leaving.disconnect()
            await leaving.ended()
            await until(lambda: replica.num_aborted == 1)
        for request in busy:
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


def _check_shape(route: Route, body: bytes, wanted: tuple[str, str, str]) -> None:
    """`wanted`: the error's type in OpenAI's, Anthropic's and TGI's words."""
    data = json.loads(body)
    if route.path.startswith("/v1/messages"):
        assert data["type"] == "error"
        assert set(data["error"]) == {"type", "message"}
        assert (data["error"]["type"], bool(data["error"]["message"])) == (wanted[1], True)
    elif route.feature == "tgi":
        assert set(data) == {"error", "error_type"}
        assert (data["error_type"], bool(data["error"])) == (wanted[2], True)
    else:
        assert set(data) == {"error"}
        assert set(data["error"]) == {"message", "type", "param", "code"}
        assert data["error"]["type"] == wanted[0]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_errors_of_ours_have_the_shape_of_the_api(route: Route) -> None:
    """Broken bodies, a full queue, a replica that fails, a gateway that drains; JSON each time."""
    async with replica_of(route) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        if route.method == "POST":
            reply = await ask(port, route.path, b"{nonsense", *([FORM_TYPE] if b"form-data" in body_of(route) else []))
            assert reply.status == (422 if route.feature == "tgi" else 400)
            _check_shape(route, reply.body, ("invalid_request_error", "invalid_request_error", "validation"))
            assert reply.header(b"content-type") == [b"application/json"]

            async def close(call: Call) -> None:
                call.close()

            replica.behaviour = by(close)
            async with RawClient(port, request_of(route, body_of(route))) as client:
                await client.read_all()
            assert client.status == 502
            _check_shape(route, client.body, ("upstream_error", "api_error", "generation"))
        gateway.drain.refuse()
        async with RawClient(port, request_of(route, body_of(route))) as client:
            await client.read_all()
        assert (client.status, bool(client.header(b"retry-after"))) == (503, True)
        _check_shape(route, client.body, ("service_unavailable_error", "overloaded_error", "overloaded"))
        assert_nothing_held(gateway)


OUT_OF_REACH = (
    "/sleep",
    "/wake_up",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/flush_cache",
    "/update_weights_from_disk",
    "/v1/files",
    "/invocations",
    "/openapi.json/../sleep",
    "/v1/chat/completions/../../../sleep",
    "/v1/./chat/completions",
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/chat/completions/",
    "/v1/chat%2Fcompletions",
    "/v1/chat/%63ompletions",
    "/v1/chat/completions%2f..%2f..%2f..%2fsleep",
    "/v1/chat/completions%00",
    "/v1/chat/completions%3Fx",
    "/v1/chat/completions;x=1",
    "/v1/chat\\completions",
    "/V1/chat/completions",
    "/generate/",
    "/%67enerate",
    "http://{replica}/sleep",
    "http://{replica}/v1/load_lora_adapter",
    "http://{replica}//sleep",
)


@pytest.mark.parametrize("target", OUT_OF_REACH)
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_nothing_else_of_a_replica_can_be_reached(method: str, target: str) -> None:
    """Encoded, doubled, dotted, absolute: 404 (or a 4xx of the server), and the replica sees nothing."""
    body = body_of(BY_PATH[CHAT])
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        before = replica.num_connections
        path = target.format(replica=replica.url.removeprefix("http://"))
        request = post(path, body).replace(b"POST", method.encode(), 1)
        async with RawClient(port, request) as client:
            await client.read_all()
        assert 400 <= client.status < 500
        assert replica.received == []
        assert replica.num_connections == before
        assert_nothing_held(gateway)


async def test_an_absolute_target_is_its_path() -> None:
    """RFC 9112, 3.2.2: served as usual, and never fetched from the host that it names."""
    async with (
        FakeReplica(answers()) as replica,
        FakeReplica(answers()) as other,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
    ):
        reply = await ask(port, other.url + CHAT, body_of(BY_PATH[CHAT]))
        assert reply.status == 200
        assert (len(replica.received), len(other.received)) == (1, 0)
        assert replica.received[0].path == CHAT
        assert replica.received[0].header("host") == [replica.url.removeprefix("http://")]


async def test_the_replicas_metrics_are_not_the_gateways() -> None:
    """/metrics is the gateway's own page."""
    async with (
        FakeReplica(answers(), pages={"/metrics": "secret"}) as replica,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
    ):
        async with RawClient(port, b"GET /metrics HTTP/1.1\r\nhost: g\r\n\r\n") as client:
            await client.read_all()
        assert b"tailgate_" in client.body
        assert b"secret" not in client.body


async def test_a_query_that_would_end_the_request_line_is_refused() -> None:
    """What a server hands over unencoded goes nowhere."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        for query in (b"a b", b"a\r\nx: y", b"\xff"):
            request = HandDriven(gateway, CHAT)
            request.scope["query_string"] = query
            request.start(body_of(BY_PATH[CHAT]))
            await request.ended()
            assert request.status == 400
        assert replica.received == []


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_other_methods_are_refused(route: Route) -> None:
    """405 with the method that the route takes; GET / is the gateway's own page."""
    async with replica_of(route) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        method = "POST" if route.method == "GET" else "PUT"
        async with RawClient(
            port, request_of(route, b"{}").replace(route.method.encode(), method.encode(), 1)
        ) as client:
            await client.read_all()
        assert client.status == 405
        if route.path != "/":
            assert client.header(b"allow") == [route.method.encode()]
        async with RawClient(port, b"GET / HTTP/1.1\r\nhost: g\r\n\r\n") as client:
            await client.read_all()
        assert client.body.startswith(b"tailgate")


async def test_requests_go_only_where_their_api_is_served() -> None:
    """With a TGI and an Anthropic-speaking server for one model, each gets what it can do, and nothing else."""
    async with FakeTgi() as tgi, FakeMessages() as vllm:
        vllm.models = (MODEL,)
        async with gateway_for(tgi, vllm) as gateway, serving(gateway) as port:
            for _ in range(4):
                for path in ("/v1/messages", "/generate"):
                    body = body_of(BY_PATH[path], model=MODEL)
                    assert (await ask(port, path, body)).status == 200
            assert {received.path for received in tgi.received} == {"/generate"}
            assert {received.path for received in sent_on(vllm)} == {"/v1/messages"}


async def test_what_no_replica_of_the_model_serves_is_told_at_once() -> None:
    """404 with a code of its own, in the shape of the API; the replica sees nothing."""
    async with FakeTgi() as tgi, gateway_for(tgi) as gateway, serving(gateway) as port:
        reply = await ask(port, "/v1/messages", body_of(BY_PATH["/v1/messages"], model=MODEL))
        assert (reply.status, json.loads(reply.body)["error"]["type"]) == (404, "not_found_error")
        reply = await ask(port, "/v1/embeddings", body_of(BY_PATH["/v1/embeddings"], model=MODEL))
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (404, "route_not_served")
        assert tgi.received == []


async def test_one_path_for_the_tokenizers_of_three_kinds() -> None:
    """/tokenize goes by the body's shape: TGI's, llama.cpp's or vLLM's."""
    async with (
        FakeTgi() as tgi,
        FakeReplica(by(_echo), owned_by="llamacpp", models=("g",)) as llama,
        FakeReplica(by(_echo), owned_by="vllm") as vllm,
        gateway_for(tgi, llama, vllm) as gateway,
        serving(gateway) as port,
    ):
        reply = await ask(port, "/tokenize", b'{"inputs":"one two"}')
        assert json.loads(reply.body) == tokenized("one two")
        reply = await ask(port, "/tokenize", b'{"model":"g","content":"x","big":1}')
        assert (reply.body, llama.received[-1].path) == (ANSWER, "/tokenize")
        reply = await ask(port, "/tokenize", b'{"model":"m1","prompt":"x","big":1}')
        assert (reply.body, sent_on(vllm)[-1].path) == (ANSWER, "/tokenize")
        reply = await ask(port, "/tokenize", b'{"model":"g","prompt":"x"}')
        assert reply.status == 404
        reply = await ask(port, "/tokenize", b'{"model":"m1","inputs":"x"}')
        assert reply.status == 404


async def test_a_tgi_server_is_called_by_its_own_name() -> None:
    """In OpenAI's routes TGI takes any name but "tgi" for an adapter: the model's own name and aliases become that."""
    config: dict[str, Any] = {"models": [{"name": MODEL, "aliases": ["gpt"]}], "default_model": MODEL}
    async with FakeTgi() as tgi, gateway_for(tgi, **config) as gateway, serving(gateway) as port:
        for model in (MODEL, "gpt", None, "tgi"):
            body = body_of(BY_PATH[CHAT], model=model)
            reply = await ask(port, CHAT, body)
            assert reply.status == 200, reply.body
            assert json.loads(tgi.received[-1].body)["model"] == "tgi"
        assert tgi.received[-1].body == body_of(BY_PATH[CHAT], model="tgi")


async def test_a_body_without_a_model_goes_to_the_only_one() -> None:
    """TGI's routes name none: with two TGI models and no default it can't be known which is meant."""
    async with FakeTgi() as tgi, FakeTgi() as second:
        second.models = ("org/other",)
        second.pages["/info"] = {**INFO, "model_id": "org/other"}
        async with gateway_for(tgi, second) as gateway, serving(gateway) as port:
            reply = await ask(port, "/generate", b'{"inputs":"a"}')
            assert (reply.status, json.loads(reply.body)["error_type"]) == (404, "validation")
            reply = await ask(port, "/generate", b'{"inputs":"a","model":"org/other"}')
            assert reply.status == 200
            assert (len(tgi.received), len(second.received)) == (0, 1)
        async with gateway_for(tgi, second, default_model=MODEL) as gateway, serving(gateway) as port:
            assert (await ask(port, "/generate", b'{"inputs":"a"}')).status == 200
            assert len(tgi.received) == 1


async def test_tgis_own_routes() -> None:
    """Whole answers, a list from /, and errors of the server's own pass as they are."""
    async with FakeTgi() as tgi, gateway_for(tgi) as gateway, serving(gateway) as port:
        reply = await ask(port, "/", b'{"inputs":"a b","parameters":{"max_new_tokens":2,"details":true}}')
        assert json.loads(reply.body)[0]["generated_text"] == " once upon"
        assert _last(gateway).output_tokens == 2
        reply = await ask(port, "/generate", b'{"inputs":"a b c"}')
        assert reply.header(b"x-generated-tokens") == [b"9"]
        assert (_last(gateway).output_tokens, "engine-queue" in _last(gateway).layers) == (9, True)
        reply = await ask(port, "/generate", b'{"inputs":"a","parameters":{"max_new_tokens":0}}')
        assert (reply.status, json.loads(reply.body)["error_type"]) == (422, "validation")
        assert gateway.pool.get("r1").is_available


def _last(gateway: Gateway) -> Any:
    return list(gateway.ring._records.values())[-1]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_an_overloaded_tgi_sends_the_request_elsewhere(path: str) -> None:
    """Also where it says so in an event of a 200 stream; when all are overloaded, their answer is passed on."""
    async with FakeTgi() as full, FakeTgi() as free, gateway_for(full, free) as gateway, serving(gateway) as port:
        full.is_overloaded = True
        for _ in range(4):
            reply = await ask(port, path, b'{"inputs":"a"}')
            assert reply.status == 200
            assert b"once upon a time" in reply.body
            assert b"overloaded" not in reply.body
        assert full.received
        free.is_overloaded = True
        reply = await ask(port, path, b'{"inputs":"a"}')
        assert reply.status == (200 if path == "/generate_stream" else 429)
        assert b'"error_type":' in reply.body
        assert _last(gateway).outcome == "failed"
        assert gateway.pool.get("r1").is_available
        assert gateway.pool.get("r2").is_available
        assert_nothing_held(gateway)


async def test_an_adapter_beside_the_model_needs_permission_too(tmp_path: Path) -> None:
    """A key for one model can't use adapters of it that it isn't for, whatever member names them."""
    write_keys(tmp_path / "keys.json", base={"models": [MODEL]}, all={}, both={"models": [MODEL, "lora"]})
    plain = {"prompt": "a", "lora_path": ["lora"]}
    tgi_own = {"inputs": "a", "parameters": {"adapter_id": "lora"}}
    async with (
        FakeTgi() as tgi,
        gateway_for(tgi, keys=str(tmp_path / "keys.json"), default_model=MODEL) as gateway,
        serving(gateway) as port,
    ):
        for path, body in (("/generate", tgi_own), ("/v1/completions", plain)):
            request = json.dumps(body).encode()
            reply = await ask(port, path, request, bearer("base"))
            assert reply.status == 403
            assert not [received for received in tgi.received if received.path == path]
            for name in ("all", "both"):
                reply = await ask(port, path, request, bearer(name))
                assert reply.status in (200, 404)  # the double has no completions
        assert [received.path for received in tgi.received] == ["/generate"] * 2 + ["/v1/completions"] * 2


async def test_one_model_by_name() -> None:
    """GET /v1/models/{id} finds names with slashes and aliases, encoded or not."""
    config: dict[str, Any] = {"models": [{"name": "org/m", "aliases": ["gpt"]}]}
    async with (
        FakeReplica(streams(), models=("org/m",)) as replica,
        gateway_for(replica, **config) as gateway,
        serving(gateway) as port,
    ):
        for name, status in (("org/m", 200), ("org%2Fm", 200), ("gpt", 200), ("none", 404)):
            async with RawClient(port, f"GET /v1/models/{name} HTTP/1.1\r\nhost: g\r\n\r\n".encode()) as client:
                await client.read_all()
            assert client.status == status
