"""Browsers: who may call from a page, and that nobody may unless it was configured."""

from typing import Any

import pytest

from gateway.config import parse_config
from gateway.config_errors import ConfigError
from tests.support.asgi import HandDriven
from tests.support.fake_replica import Call, FakeReplica
from tests.support.gateways import BODY, CHAT, assert_nothing_held, gateway_for

PAGE = "https://chat.example.com"
ASKING = [
    (b"origin", PAGE.encode()),
    (b"access-control-request-method", b"POST"),
    (b"access-control-request-headers", b"authorization,x-stainless-os"),
]


async def behave(call: Call) -> None:
    """As vLLM by default, which lets every page in."""
    await call.whole(
        b"{}", headers=[("access-control-allow-origin", "*"), ("access-control-allow-credentials", "true")]
    )


def cors_headers(request: HandDriven) -> dict[bytes, bytes]:
    return {name: value for name, value in request.headers if name.startswith(b"access-control-")}


async def asked(gateway: Any, path: str, headers: list[tuple[bytes, bytes]], **how: Any) -> HandDriven:
    request = HandDriven(gateway, path, headers=headers, **how).start(BODY)
    await request.ended()
    return request


async def test_no_page_may_call_unless_configured() -> None:
    """What the replica would allow isn't passed on."""
    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway:
        assert cors_headers(await asked(gateway, CHAT, ASKING[:1])) == {}
        preflight = await asked(gateway, CHAT, ASKING, method="OPTIONS")
        assert (preflight.status, cors_headers(preflight)) == (405, {})


async def test_a_configured_page_may() -> None:
    """Preflights are answered here, for every route and without a key; answers, errors too, can be read by the page."""
    cors: dict[str, Any] = {"cors": {"origins": [PAGE, "http://localhost:3000"], "max_age_s": 60}}
    async with FakeReplica(behave) as replica, gateway_for(replica, **cors) as gateway:
        for path in (CHAT, "/v1/models", "/v1/nothing"):
            preflight = await asked(gateway, path, ASKING, method="OPTIONS")
            assert preflight.status == 204
            allowed = cors_headers(preflight)
            assert allowed[b"access-control-allow-origin"] == PAGE.encode()
            assert b"POST" in allowed[b"access-control-allow-methods"]
            assert {b"authorization", b"content-type", b"*"} <= set(
                allowed[b"access-control-allow-headers"].split(b", ")
            )
            assert allowed[b"access-control-max-age"] == b"60"
        assert replica.received == []
        for path, status in ((CHAT, 200), ("/v1/nothing", 404)):
            request = await asked(gateway, path, ASKING[:1])
            assert request.status == status
            assert cors_headers(request) == {
                b"access-control-allow-origin": PAGE.encode(),
                b"access-control-expose-headers": b"*",
            }
            assert (b"vary", b"origin") in request.headers
        assert_nothing_held(gateway)


@pytest.mark.parametrize("origin", [b"https://evil.example", b"null", b"https://chat.example.com.evil.example", b""])
async def test_another_page_may_not(origin: bytes) -> None:
    """Its preflight is refused; a request that needs none is answered, but the page can't read it."""
    async with (
        FakeReplica(behave) as replica,
        gateway_for(replica, cors={"origins": [PAGE]}) as gateway,
    ):
        preflight = await asked(gateway, CHAT, [(b"origin", origin), *ASKING[1:]], method="OPTIONS")
        assert (preflight.status, cors_headers(preflight)) == (403, {})
        request = await asked(gateway, CHAT, [(b"origin", origin)])
        assert (request.status, cors_headers(request)) == (200, {})
        assert (b"vary", b"origin") in request.headers


async def test_any_page_may() -> None:
    """Where that is meant."""
    async with FakeReplica(behave) as replica, gateway_for(replica, cors={"origins": ["*"]}) as gateway:
        request = await asked(gateway, CHAT, [(b"origin", b"https://any.example")])
        assert cors_headers(request)[b"access-control-allow-origin"] == b"*"
        assert (b"vary", b"origin") not in request.headers


@pytest.mark.parametrize("origin", ["chat.example.com", "https://a.example/path", "ftp://a", ""])
def test_origins_are_checked(origin: str) -> None:
    """They are what browsers send, or would never match."""
    with pytest.raises(ConfigError, match=r"cors\.origins\[0\]"):
        parse_config({"replicas": [{"url": "http://a:1"}], "cors": {"origins": [origin]}}, source="test")
