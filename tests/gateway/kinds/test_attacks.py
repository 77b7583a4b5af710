"""Requests that mean harm: to reach what they shouldn't, to pass for somebody else, to write into logs and metrics."""

import json
import logging
from pathlib import Path

import pytest

from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import BODY, CHAT, assert_nothing_held, gateway_for
from tests.support.keys import bearer, write_keys
from tests.support.raw import answer_to, statuses
from tests.support.serve import RawClient, ask, serving

STEERING = [
    ("x-prefiller-host-port", "{other}"),
    ("x-prefiller-url", "http://{other}"),
    ("x-gateway-destination-endpoint", "{other}"),
    ("x-forwarded-host", "{other}"),
    ("x-original-url", "/sleep"),
    ("x-rewrite-url", "/sleep"),
    ("x-http-method-override", "GET"),
    ("x-backend", "r2"),
    ("x-tailgate-replica", "r2"),
]


@pytest.mark.parametrize(("name", "value"), STEERING)
async def test_no_header_says_where_a_request_goes(name: str, value: str) -> None:
    """Nor how, nor to which path: the replica is the gateway's choice, and its Host is its own."""
    async with (
        FakeReplica(answers(), models=("m1",)) as replica,
        FakeReplica(answers()) as other,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
    ):
        authority = other.url.removeprefix("http://")
        assert (await ask(port, CHAT, BODY, (name, value.format(other=authority)))).status == 200
        assert other.num_connections == 0
        assert (replica.received[0].method, replica.received[0].path) == ("POST", CHAT)
        assert replica.received[0].header("host") == [replica.url.removeprefix("http://")]


async def test_no_member_of_a_body_says_where_a_request_goes() -> None:
    """They pass as members that a replica may know; nobody is connected to for their sake."""
    async with (
        FakeReplica(answers()) as replica,
        FakeReplica(answers()) as other,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
    ):
        body = json.loads(BODY) | dict.fromkeys(("api_base", "base_url", "endpoint", "custom_llm_provider"), other.url)
        assert (await ask(port, CHAT, json.dumps(body).encode())).status == 200
        assert other.num_connections == 0


async def test_a_redirect_of_a_replica_is_not_followed() -> None:
    """Or a replica could make the gateway ask others, with its key."""
    async with FakeReplica(answers()) as other:

        async def redirect(call: object) -> None:
            await call.whole(b"", status=307, headers=[("location", other.url + CHAT)])  # type: ignore[attr-defined]

        async with FakeReplica(redirect) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
            assert (await ask(port, CHAT, BODY)).status == 307
            assert other.num_connections == 0


SMUGGLED = {
    "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    "a length and a sign": b"Content-Length: +4\r\n\r\nabcd",
    "a length below nothing": b"Content-Length: -1\r\n\r\n",
    "a length with a gap": b"Content-Length: 1 0\r\n\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding more": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "nearly a coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded line": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a null": b"X: a\0b\r\n\r\n",
    "a bare carriage return": b"X: a\rTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_request_that_could_be_two_is_none(name: str) -> None:
    """Refused, once, and the connection ends: what follows is no request, whoever wrote it."""
    request = b"POST %b HTTP/1.1\r\nHost: a\r\n%bGET /admin HTTP/1.1\r\nHost: a\r\n\r\n" % (
        CHAT.encode(),
        SMUGGLED[name],
    )
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        (status,) = statuses(await answer_to(port, request))
        assert status in (400, 501)
        assert replica.received == []
        assert_nothing_held(gateway)


CREDENTIALS = {
    "none": [],
    "nothing": [("authorization", "")],
    "no scheme": [("authorization", "{key}")],
    "another scheme": [("authorization", "Basic {key}")],
    "one character less": [("authorization", "Bearer {short}")],
    "one character more": [("authorization", "Bearer {key}x")],
    "another case": [("authorization", "Bearer {upper}")],
    "a good one behind a bad one": [("authorization", "Bearer x"), ("authorization", "Bearer {key}")],
    "odd bytes": [("authorization", "Bearer \xe9\xff")],
    "a very long one": [("authorization", "Bearer " + "x" * 20_000)],
}


@pytest.mark.parametrize("name", CREDENTIALS)
async def test_nearly_the_key_is_no_key(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One answer for all of them, before the body is read, that shows nothing of the key; nor does the log."""
    caplog.set_level(logging.DEBUG)
    path, (_, good) = tmp_path / "keys.json", bearer("canary")
    write_keys(path, canary={})
    key = good.removeprefix("Bearer ")
    values = {"key": key, "short": key[:-1], "upper": key.upper()}
    headers = [(header, value.format(**values)) for header, value in CREDENTIALS[name]]
    async with (
        FakeReplica(answers()) as replica,
        gateway_for(replica, keys=str(path)) as gateway,
        serving(gateway) as port,
    ):
        reply = await ask(port, CHAT, BODY, *headers)
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["code"]) == (401, "invalid_api_key")
        assert reply.header(b"www-authenticate") == [b"Bearer"]
        assert key not in reply.body.decode() + caplog.text
        assert replica.received == []
        assert (await ask(port, CHAT, BODY, bearer("canary"))).status == 200
        assert not replica.received[0].header("authorization")


async def test_floods_of_names_make_no_series() -> None:
    """Paths, methods, models and users of clients' making add nothing to the page of metrics but their counts."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:

        async def flood(start: int) -> None:
            for number in range(start, start + 20):
                body = json.dumps({"model": f"junk-{number}", "user": f"user-{number}", "messages": []}).encode()
                await ask(port, CHAT, body)
                await ask(port, f"/v1/junk-{number}", b"{}")
                async with RawClient(port, b"BREW /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number) as client:
                    await client.read_all()

        await flood(0)
        before = gateway.metrics.render()[0]
        await flood(20)
        after = gateway.metrics.render()[0]
        assert before.count(b"\n") == after.count(b"\n")
        assert not any(word in after for word in (b"junk", b"user-", b"BREW"))
        assert replica.received == []
