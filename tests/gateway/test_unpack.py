"""Request bodies that came packed."""

import gzip
import json
import zlib

import pytest

from tests.support.asgi import HandDriven
from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import BODY, CHAT, assert_nothing_held, gateway_for


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        (b"gzip", gzip.compress(BODY, mtime=0)),
        (b"x-gzip", gzip.compress(BODY, mtime=0)),
        (b"GZIP ", gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0)),
        (b"deflate", zlib.compress(BODY)),
        (b"identity", BODY),
        (b"", BODY),
    ],
)
async def test_a_packed_body_goes_on_unpacked(coding: bytes, packed: bytes) -> None:
    """Without its label, with its own length."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT, headers=[(b"content-encoding", coding)]).start(packed)
        await request.ended()
        assert request.status == 200
        (received,) = replica.received
        assert received.body == BODY
        assert received.header("content-encoding") == []
        assert received.header("content-length") == [str(len(BODY))]


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"not packed",
        gzip.compress(BODY, mtime=0)[:-4],
        gzip.compress(BODY, mtime=0) + b"more",
        zlib.compress(BODY)[2:],
    ],
)
async def test_a_body_that_is_not_what_its_label_says(packed: bytes) -> None:
    """400, and nothing goes on."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT, headers=[(b"content-encoding", b"gzip")]).start(packed)
        await request.ended()
        assert request.status == 400
        assert replica.received == []


async def test_a_bomb_is_bounded_by_what_it_unpacks_to() -> None:
    """413 at the bound on bodies, exactly, however small it comes; within it, it's a body like others."""
    text = b'{"model":"m1","messages":[{"role":"user","content":"' + b"a" * 2_000_000 + b'"}]}'
    for max_body_bytes, status in ((len(text), 200), (len(text) - 1, 413)):
        limits = {"max_body_bytes": max_body_bytes}
        async with FakeReplica(answers()) as replica, gateway_for(replica, limits=limits) as gateway:
            request = HandDriven(gateway, CHAT, headers=[(b"content-encoding", b"gzip")]).start(gzip.compress(text))
            await request.ended()
            assert request.status == status
            assert_nothing_held(gateway)


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, gzip", b"gzip, br"])
async def test_other_codings_are_refused(coding: bytes) -> None:
    """415, with those that would do."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT, headers=[(b"content-encoding", coding)]).start(b"x")
        await request.ended()
        assert request.status == 415
        assert dict(request.headers)[b"accept-encoding"] == b"gzip, deflate"
        assert json.loads(request.body)["error"]["code"] == "unsupported_content_encoding"
        assert replica.received == []
