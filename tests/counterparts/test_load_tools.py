"""The load tools wrk and h2load against the gateway: many requests, not one lost, broken or counted wrongly."""

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from tests.support.fake_replica import DONE, FakeReplica, answers, delta, finish, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY
from tests.support.serve import until

from .entrance import Entrance, entrance_to

DEADLINE_S = 60.0
NUM_REQUESTS = 1000
NUM_CONNECTIONS = 32
STREAM = streams(*(delta(f"word {index} ") for index in range(20)), finish(), DONE)

WRK_SCRIPT = """
wrk.method, wrk.headers["content-type"] = "POST", "application/json"
local file = io.open("{body}"); wrk.body = file:read("*a"); file:close()
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("requests=%d errors=%d\\n", summary.requests,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


async def output_of(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(DEADLINE_S):
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


def outcomes(entrance: Entrance) -> dict[str, float]:
    """How many requests ended how, as the gateway counts them."""
    page = entrance.gateway.metrics.render()[0].decode()
    counts: dict[str, float] = {}
    for line in page.splitlines():
        if match := re.fullmatch(r'tailgate_requests_total\{.*outcome="([^"]+)".*\} (\S+)', line):
            counts[match[1]] = counts.get(match[1], 0) + float(match[2])
    return counts


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load (Debian: nghttp2-client) isn't installed")
@pytest.mark.parametrize("body", [BODY, STREAM_BODY], ids=["whole", "stream"])
async def test_h2load(tmp_path: Path, body: bytes) -> None:
    """Every request succeeds, and is counted once."""
    (tmp_path / "body").write_bytes(body)
    async with FakeReplica(answers() if body is BODY else STREAM) as replica, entrance_to(replica) as entrance:
        out = await output_of(
            *("h2load", "--h1", "-n", str(NUM_REQUESTS), "-c", str(NUM_CONNECTIONS), "-d", str(tmp_path / "body")),
            *("-H", "content-type: application/json", entrance.url + CHAT),
        )
        assert f"{NUM_REQUESTS} done, {NUM_REQUESTS} succeeded, 0 failed, 0 errored, 0 timeout" in out
        assert f"status codes: {NUM_REQUESTS} 2xx" in out
        await until(lambda: outcomes(entrance) == {"ok": NUM_REQUESTS})
        assert len(replica.received) == NUM_REQUESTS


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk isn't installed")
async def test_wrk(tmp_path: Path) -> None:
    """No error in a second of it, nor any other outcome than answers and what it broke off itself at its end."""
    (tmp_path / "body").write_bytes(BODY)
    script = tmp_path / "script.lua"
    script.write_text(WRK_SCRIPT.format(body=tmp_path / "body"))
    async with FakeReplica(answers()) as replica, entrance_to(replica) as entrance:
        out = await output_of(
            *("wrk", "-t", "1", "-c", str(NUM_CONNECTIONS), "-d", "1s", "-s", str(script), entrance.url + CHAT)
        )
        match = re.search(r"requests=(\d+) errors=(\d+)", out)
        assert match is not None, out
        assert (int(match[1]) > 0, int(match[2])) == (True, 0)
        await until(lambda: entrance.gateway.core.num_in_flight == 0)
        counts = outcomes(entrance)
        assert set(counts) <= {"ok", "client-left"}
        assert counts["ok"] >= int(match[1])
        assert counts.get("client-left", 0) <= NUM_CONNECTIONS
