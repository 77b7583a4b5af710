"""Keys in front of a running gateway: who gets in, what they may use, and what never gets out."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.api.routes import ROUTES
from gateway.app import Gateway
from gateway.key_ring import KeyRing
from gateway.keys import EVERYBODY
from tests.support.asgi import HandDriven
from tests.support.fake_replica import DONE, FakeReplica, answers, delta, hangs, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, chat_body, gateway_for
from tests.support.keys import bearer, write_keys
from tests.support.serve import RawClient, ask, post, serving, until

MESSAGES_BODY = json.dumps({"model": "m1", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write_keys(path, plain={}, chief={"admin": True}, seer={"diagnostics": True})
    return path


def refuses_file(gateway: Gateway) -> bool:
    return gateway.keys.is_refused


def write(path: Path, text: str | None) -> None:
    """Another content, or no file at all."""
    path.unlink()
    if text is not None:
        path.write_text(text)


async def fetch(port: int, path: str, *headers: tuple[str, str]) -> RawClient:
    lines = [f"GET {path} HTTP/1.1", "host: g", *(f"{name}: {value}" for name, value in headers), "", ""]
    async with RawClient(port, "\r\n".join(lines).encode("latin-1")) as client:
        return await client.read_all()


def error_of(reply: RawClient) -> dict[str, Any]:
    error = json.loads(reply.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error  # type: ignore[no-any-return]


class TestGettingIn:
    @pytest.mark.parametrize(
        "headers",
        [
            [bearer("plain")],
            [("x-api-key", "sk-plain")],
            [("authorization", "bearer sk-plain"), ("x-api-key", "other")],
        ],
    )
    async def test_a_known_key_is_let_in(self, keys: Path, headers: list[tuple[str, str]]) -> None:
        """In either header; the request carries its tenant."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            assert (await ask(port, CHAT, BODY, *headers)).status == 200
            (record,) = gateway.ring._records.values()
            assert (record.key_id, record.tenant) == ("plain", "t-plain")

    @pytest.mark.parametrize(
        "headers",
        [
            [],
            [("authorization", "Bearer sk-wrong-CANARY")],
            [("authorization", "Basic c2stQ0FOQVJZ")],
            [("authorization", "Bearer ")],
            [("authorization", "bearer")],
            [("authorization", "sk-plain")],
            [("x-api-key", "CANARY")],
            [bearer("plain"), ("authorization", "Bearer CANARY")],
        ],
    )
    async def test_others_are_refused_before_anything_is_done(self, keys: Path, headers: list[tuple[str, str]]) -> None:
        """401 with nothing in it of what was sent or of what is behind, on every route."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            for path in [route.path for route in ROUTES if route.method == "POST"]:
                reply = await ask(port, path, BODY, *headers)
                assert reply.status == 401
                assert reply.header(b"www-authenticate") == [b"Bearer"]
                told = reply.body + b"\n".join([b"", *(value for _, value in reply.headers)])
                assert not any(word in told for word in (b"CANARY", b"Q0FOQVJZ", b"blake", b"m1", b"r1", b"sjf"))
                assert reply.header(b"x-tailgate-policy") == []
            assert error_of(await ask(port, CHAT, BODY, *headers))["code"] == "invalid_api_key"
            for path in ("/v1/models", "/v1/models/m1", "/v1/requests/tg-1/timing", "/metrics", "/info"):
                assert (await fetch(port, path, *headers)).status == 401
            assert replica.received == []
            assert_nothing_held(gateway)

    async def test_a_key_in_the_query_is_none(self, keys: Path) -> None:
        """Addresses are written to logs everywhere."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            for name in ("api_key", "key", "access_token"):
                assert (await ask(port, f"{CHAT}?{name}=sk-plain", BODY)).status == 401

    async def test_a_body_is_not_waited_for(self, keys: Path) -> None:
        """Whoever has no key can't make the gateway receive anything."""
        async with FakeReplica(answers()) as replica, gateway_for(replica, keys=str(keys)) as gateway:
            request = HandDriven(gateway, CHAT, headers=[(b"content-length", b"8000000")]).start()
            await request.ended()
            assert request.status == 401

    async def test_the_shape_is_that_of_the_api(self, keys: Path) -> None:
        """Anthropic's and TGI's clients understand their own."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            reply = await ask(port, "/v1/messages", MESSAGES_BODY)
            assert json.loads(reply.body)["error"]["type"] == "authentication_error"
            reply = await ask(port, "/generate", b'{"inputs":"hi"}')
            assert (reply.status, json.loads(reply.body)["error_type"]) == (401, "authentication")

    async def test_health_needs_no_key_and_tells_no_names(self, keys: Path) -> None:
        """Probes of a cluster have none; replicas are shown to whoever may know."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            assert (await fetch(port, "/healthz")).status == 200
            ready = await fetch(port, "/readyz")
            assert (ready.status, json.loads(ready.body)) == (200, {"status": "ready"})
            assert json.loads((await fetch(port, "/readyz", bearer("plain"))).body) == {"status": "ready"}
            assert "r1" in json.loads((await fetch(port, "/readyz", bearer("seer"))).body)["replicas"]


class TestWhatReachesTheReplica:
    SENT = (
        *(bearer("plain"), ("x-api-key", "sk-plain"), ("api-key", "sk-plain"), ("x-goog-api-key", "other")),
        *(
            ("cookie", "k=sk-plain"),
            ("x-note", "mine is sk-plain"),
            ("x-harmless", "yes"),
            ("proxy-authorization", "x"),
        ),
    )

    @pytest.mark.parametrize("own", [None, "Bearer sk-replica"])
    async def test_with_keys_never_the_clients(self, keys: Path, own: str | None) -> None:
        """Wherever in the head it was sent, and with or without a key of the replica's own."""
        options: dict[str, Any] = {"keys": str(keys), "replica": {"authorization": own}}
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, **options) as gateway,
            serving(gateway) as port,
        ):
            assert (await ask(port, f"{CHAT}?a=1&key=sk-plain", BODY, *self.SENT)).status == 200
            assert (await ask(port, f"{CHAT}?a=1", BODY, bearer("plain"))).status == 200
        first, second = replica.received
        assert (first.path, second.path) == (CHAT, f"{CHAT}?a=1")
        assert first.header("authorization") == ([] if own is None else [own])
        assert not any("sk-plain" in value for _, value in first.headers)
        for name in ("x-api-key", "api-key", "x-goog-api-key", "cookie", "x-note", "proxy-authorization"):
            assert first.header(name) == []
        assert first.header("x-harmless") == ["yes"]

    async def test_without_keys_the_clients_own(self) -> None:
        """As they came, however many there are; unless the replica has its own, which goes alone."""
        async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
            await ask(port, CHAT, BODY, ("authorization", "Basic abc"), ("x-api-key", "k"))
        assert replica.received[0].header("authorization") == ["Basic abc"]
        assert replica.received[0].header("x-api-key") == ["k"]
        options: dict[str, Any] = {"replica": {"authorization": "Bearer own"}}
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, **options) as gateway,
            serving(gateway) as port,
        ):
            await ask(port, CHAT, BODY, ("authorization", "Basic abc"), ("x-api-key", "k"))
        assert replica.received[0].header("authorization") == ["Bearer own"]
        assert replica.received[0].header("x-api-key") == []


class TestWhatAKeyMayUse:
    @pytest.fixture
    def keys(self, tmp_path: Path) -> Path:
        path = tmp_path / "keys.json"
        write_keys(
            path,
            one={"models": ["m1"]},
            alias={"models": ["gpt"]},
            none={"models": []},
            batch={"priority_ceiling": -1},
            slow={"lanes": ["long", "background"]},
        )
        return path

    MODELS: tuple[dict[str, Any], ...] = ({"name": "m1"}, {"name": "m2", "aliases": ["gpt"]})

    async def test_models(self, keys: Path) -> None:
        """403 with what is allowed; a name that nobody serves is unknown, and only allowed names are told."""
        options: dict[str, Any] = {"keys": str(keys), "models": self.MODELS, "default_model": "m2"}
        async with (
            FakeReplica(answers(), models=("m1", "m2")) as replica,
            gateway_for(replica, **options) as gateway,
            serving(gateway) as port,
        ):
            for name, model, status in (
                *(("one", "m1", 200), ("one", "m2", 403), ("one", "gpt", 403), ("one", "junk", 404)),
                *(("alias", "gpt", 200), ("alias", "m1", 403), ("alias", "m2", 403), ("none", "m1", 403)),
            ):
                reply = await ask(port, CHAT, chat_body(model=model), bearer(name))
                assert reply.status == status, (name, model)
                if status == 403:
                    error = error_of(reply)
                    assert (error["code"], error["param"]) == ("model_not_allowed", "model")
                    assert f"`{model}`" in error["message"]
                if status == 404:
                    assert error_of(reply)["message"].endswith("Served here: `m1`.")
            default = await ask(port, CHAT, b'{"messages":[{"role":"user","content":"hi"}]}', bearer("one"))
            assert (default.status, error_of(default)["code"]) == (403, "model_not_allowed")
            refused = await ask(port, "/v1/messages", MESSAGES_BODY.replace(b"m1", b"m2"), bearer("one"))
            assert json.loads(refused.body)["error"]["type"] == "permission_error"
            assert len(replica.received) == 2
            for name, listed in (("one", ["m1"]), ("alias", ["gpt"]), ("none", [])):
                page = json.loads((await fetch(port, "/v1/models", bearer(name))).body)
                assert [card["id"] for card in page["data"]] == listed
            assert (await fetch(port, "/v1/models/m2", bearer("one"))).status == 404
            assert_nothing_held(gateway)

    async def test_a_model_that_is_named_twice(self, keys: Path) -> None:
        """Whichever one a replica takes, it is the one that the key may use."""
        rest = b'"messages":[{"role":"user","content":"hi"}]}'
        async with (
            FakeReplica(answers(), models=("m1", "m2")) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            for first in (b'{"model":"m2","model":"m1",', b'{"mod\\u0065l":"m2","model":"m1",'):
                assert (await ask(port, CHAT, first + rest, bearer("one"))).status == 200
                assert replica.received[-1].body == first.replace(b"m2", b"m1") + rest

    async def test_lanes_and_priorities(self, keys: Path) -> None:
        """A lane that is named must be allowed; a priority is lowered; nothing named is the best that is allowed."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            for name, lane, priority, given in (
                *(("one", "interactive", 0, b"interactive"), ("batch", None, -5, b"background")),
                *(("batch", None, 0, b"background"), ("slow", None, 0, b"long"), ("slow", None, 5, b"background")),
                ("slow", "background", 0, b"background"),
            ):
                headers = [bearer(name)] + ([("x-tailgate-lane", lane)] if lane else [])
                reply = await ask(port, CHAT, chat_body(priority=priority), *headers)
                assert reply.header(b"x-tailgate-lane") == [given], (name, lane, priority)
            reply = await ask(port, CHAT, BODY, bearer("slow"), ("x-tailgate-lane", "interactive"))
            assert (reply.status, error_of(reply)["code"]) == (403, "lane_not_allowed")


class TestWhatIsTold:
    HIDDEN = (b"x-tailgate-replica", b"x-tailgate-policy", b"x-tailgate-reason")

    async def _asked(self, gateway: Gateway, port: int, name: str) -> RawClient:
        return await ask(port, CHAT, STREAM_BODY, bearer(name), ("x-tailgate-timing", "stream"))

    async def test_replica_policy_and_reason_only_with_diagnostics(self, keys: Path) -> None:
        """In headers, in the comment of a stream and in the timing; what one tenant sent isn't told to others."""
        engine = ("server-timing", 'backend-queue;dur=1, backend-prefill;dur=2, backend-cached;desc="7"')
        behaviour = streams(delta("a"), DONE, headers=[engine, ("x-ratelimit-limit-requests", "9")])
        async with (
            FakeReplica(behaviour) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            for name, hides, hides_cached in (
                ("plain", True, True),
                ("seer", False, True),
                ("chief", False, False),
            ):
                reply = await self._asked(gateway, port, name)
                assert any(reply.header(header) for header in self.HIDDEN) is not hides
                assert len(reply.header(b"server-timing")) == (1 if hides_cached else 2)
                assert reply.header(b"x-ratelimit-limit-requests") == [b"9"]
                comment = next(line for line in reply.body.split(b"\n") if line.startswith(b": tailgate "))
                request_id = reply.header(b"x-tailgate-request-id")[0].decode()
                page = await fetch(port, f"/v1/requests/{request_id}/timing", bearer(name))
                for told in (json.loads(comment.removeprefix(b": tailgate ")), json.loads(page.body)):
                    assert ("replica" in told) is not hides
                    assert ("cached_tokens" in told) is not hides_cached
                    assert "layers_ms" in told

    async def test_a_failed_attempt_names_no_replica(self, keys: Path) -> None:
        """The layer `retry` has a note that does; only those with diagnostics read it."""

        async with (
            FakeReplica(answers()) as replica,
            FakeReplica(answers()) as other,
            gateway_for(replica, other, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            replica.behaviour = _busy
            other.behaviour = answers()
            told = {}
            for name in ("plain", "seer"):
                timing = b""
                while b"retry" not in timing:
                    (timing,) = (await ask(port, CHAT, BODY, bearer(name))).header(b"server-timing")
                told[name] = timing
            assert b"r1" not in told["plain"]
            assert b"r1: status 503" in told["seer"]

    async def test_a_timing_is_for_its_own_key(self, keys: Path) -> None:
        """And for admins; to others it doesn't exist. Those of strangers aren't kept at all."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            reply = await ask(port, CHAT, BODY, bearer("plain"))
            path = f"/v1/requests/{reply.header(b'x-tailgate-request-id')[0].decode()}/timing"
            statuses = {name: (await fetch(port, path, bearer(name))).status for name in ("plain", "seer", "chief")}
            assert statuses == {"plain": 200, "seer": 404, "chief": 200}
            num_kept = len(gateway.ring)
            for _ in range(3):
                assert (await ask(port, CHAT, BODY)).status == 401
            assert len(gateway.ring) == num_kept


async def _busy(call: Any) -> None:
    await call.whole(b"{}", status=503)


class TestOperator:
    async def test_metrics_need_an_admin_key_beside_the_other_routes(self, keys: Path) -> None:
        """401 without a key, 403 with another one."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            await ask(port, CHAT, BODY, bearer("plain"))
            assert (await fetch(port, "/metrics")).status == 401
            refused = await fetch(port, "/metrics", bearer("seer"))
            assert (refused.status, error_of(refused)["code"]) == (403, "admin_only")
            page = await fetch(port, "/metrics", ("x-api-key", "sk-chief"))
            assert page.status == 200
            (line,) = [line for line in page.body.split(b"\n") if line.startswith(b"tailgate_tenant_requests_total{")]
            assert b'tenant="t-plain"' in line
            assert line.endswith(b" 1.0")
            assert b"tailgate_keys 3.0" in page.body
            assert b"tailgate_key_file_refused 0.0" in page.body

    @pytest.mark.parametrize(("admin", "status"), [({"key_required": False}, 200), ({"key_required": True}, 401)])
    async def test_whether_they_do_can_be_said(self, keys: Path, admin: dict[str, Any], status: int) -> None:
        """For a network that only the operator reaches, or the other way round."""
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, keys=str(keys), admin=admin) as gateway,
            serving(gateway) as port,
        ):
            assert (await fetch(port, "/metrics")).status == status

    @pytest.mark.parametrize("key_required", [None, True])
    @pytest.mark.parametrize("with_keys", [True, False])
    async def test_a_listener_of_their_own(self, keys: Path, key_required: bool | None, with_keys: bool) -> None:
        """Metrics and all timings there, requests to models here, and nothing of the one at the other."""
        if key_required and not with_keys:
            return
        options: dict[str, Any] = {"admin": {"listen": {"port": 0}, "key_required": key_required}}
        if with_keys:
            options["keys"] = str(keys)
        async with FakeReplica(answers()) as replica, gateway_for(replica, **options) as gateway:
            gateway.access.port = 81
            admin = [(b"x-api-key", b"sk-chief")] if key_required else []
            own = [(b"x-api-key", b"sk-plain")] if with_keys else []

            async def at(port: int, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> HandDriven:
                request = HandDriven(gateway, path, method=method, headers=headers)
                request.scope["server"] = ("127.0.0.1", port)
                request.start(BODY if method == "POST" else b"")
                await request.ended()
                return request

            served = await at(80, "POST", CHAT, own)
            assert served.status == 200
            timing = f"/v1/requests/{dict(served.headers)[b'x-tailgate-request-id'].decode()}/timing"
            assert (await at(81, "GET", timing, admin)).status == 200
            assert (await at(80, "GET", timing, own)).status == 200
            assert (await at(81, "GET", "/metrics", admin)).status == 200
            assert (await at(80, "GET", "/metrics", admin)).status == 404
            assert (await at(80, "GET", "/metrics", [(b"x-api-key", b"sk-chief")])).status == 404
            assert (await at(81, "POST", CHAT, own)).status in (404, 405)
            for port in (80, 81):
                assert (await at(port, "GET", "/healthz", [])).status == 200
            if key_required:
                assert (await at(81, "GET", "/metrics", [])).status == 401
                assert (await at(81, "GET", "/metrics", own)).status == 403
            assert len(replica.received) == 1


class TestNoWayElsewhere:
    """A client can't make the gateway ask anybody but the configured replicas."""

    async def test_neither_by_header_nor_body_nor_target(self) -> None:
        """Hosts in headers and in the body are only text, and a target in absolute form is its path."""
        async with FakeReplica(answers()) as victim, FakeReplica(answers()) as replica:
            async with gateway_for(replica) as gateway, serving(gateway) as port:
                host = victim.url.removeprefix("http://")
                headers = [
                    *(("x-forwarded-host", host), ("forwarded", f"host={host}"), ("x-original-url", victim.url)),
                    *(("x-upstream", victim.url), ("x-tailgate-replica", victim.url), ("referer", victim.url)),
                ]
                body = chat_body(
                    api_base=victim.url, base_url=victim.url, url=victim.url, metadata={"endpoint": victim.url}
                )
                assert (await ask(port, CHAT, body, *headers)).status == 200
                lines = f"POST {victim.url}{CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(BODY)}\r\n\r\n"
                async with RawClient(port, lines.encode() + BODY) as client:
                    await client.read_all()
                assert client.status in (200, 400, 404)
                for path in (f"//{host}{CHAT}", f"/{victim.url}", f"{CHAT}@{host}", f"{CHAT}/../../x"):
                    assert (await ask(port, path, BODY)).status == 404
                for sent in replica.received:
                    assert sent.path.split("?")[0] == CHAT
                    assert sent.header("host") == [replica.url.removeprefix("http://")]
            assert victim.num_connections == 0

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_not_by_a_redirect(self, status: int) -> None:
        """It goes to the client as it is, and nobody follows it here."""
        async with FakeReplica(answers()) as victim, FakeReplica(answers()) as replica:

            async def away(call: Any) -> None:
                await call.whole(b"", status=status, headers=[("location", victim.url + CHAT)])

            replica.behaviour = away
            async with gateway_for(replica) as gateway, serving(gateway) as port:
                assert (await ask(port, CHAT, BODY)).status == status
            assert victim.num_connections == 0


class TestReloading:
    async def test_a_file_that_changes(self, keys: Path) -> None:
        """New keys get in, revoked ones don't, a running stream of theirs goes on; a bad file changes nothing."""
        async with (
            FakeReplica(hangs(delta("a"))) as replica,
            gateway_for(replica, keys=str(keys)) as gateway,
            serving(gateway) as port,
        ):
            async with RawClient(port, post(CHAT, STREAM_BODY, bearer("plain"))) as running:
                await running.read_until(lambda: running.body == delta("a"))
                write_keys(keys, fresh={})
                await gateway.keys.refresh()
                replica.behaviour = answers()
                assert (await ask(port, CHAT, BODY, bearer("plain"))).status == 401
                assert (await ask(port, CHAT, BODY, bearer("fresh"))).status == 200
                write(keys, '{"salt": ')
                await gateway.keys.refresh()
                assert refuses_file(gateway)
                assert (await ask(port, CHAT, BODY, bearer("fresh"))).status == 200
                write(keys, None)
                await gateway.keys.refresh()
                assert (await ask(port, CHAT, BODY, bearer("fresh"))).status == 200
                write_keys(keys, plain={})  # where there is none at this moment
                await gateway.keys.refresh()
                assert not refuses_file(gateway)
                assert (await ask(port, CHAT, BODY, bearer("plain"))).status == 200
                assert not running.is_complete
                assert gateway.core.num_in_flight == 1
            await until(lambda: gateway.core.num_in_flight == 0)

    async def test_without_a_file_there_is_nothing_to_read(self) -> None:
        """And everybody goes on being let in."""
        ring = KeyRing(None, lambda: 0.0, assumed_output_tokens=1)
        await ring.refresh()
        assert (ring.has_keys, ring.num_keys) == (False, 0)
        assert ring.identify([]) is EVERYBODY

    async def test_it_is_noticed_by_itself(self, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without being told, and whatever goes wrong while looking."""
        monkeypatch.setattr("gateway.key_ring.LOOK_EVERY_S", 0.001)
        async with FakeReplica(answers()) as replica, gateway_for(replica, keys=str(keys)) as gateway:
            looked = asyncio.Event()

            async def fails() -> None:
                looked.set()
                raise RuntimeError("no memory")

            with monkeypatch.context() as patch:
                patch.setattr(gateway.keys, "refresh", fails)
                await looked.wait()
            write_keys(keys, one={}, two={})
            await until(lambda: gateway.keys.num_keys == 2)
