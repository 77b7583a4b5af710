"""The OpenAPI description taken at its word: requests made from it, and the answers held against it."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gateway.app import build_app
from gateway.config import parse_config
from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import gateway_for
from tests.support.serve import serving

from .effort import EFFORT

EVERYTHING = ["messages", "count-tokens", "rerank", "score", "pooling", "classify", "render", "detokenize", "speech"]
DESCRIPTION = build_app(parse_config({"replicas": [{"url": "http://127.0.0.1:1"}]}, source="test"))._admin.openapi()
schema = schemathesis.openapi.from_dict(DESCRIPTION)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway on a thread of its own, for requests are sent from functions that block."""
    started, stopped = threading.Event(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        async with (
            FakeReplica(answers()) as replica,
            gateway_for(replica, replica={"also_serves": EVERYTHING}, timeouts={"receive_s": 2.0}) as gateway,
            serving(gateway) as port,
        ):
            ports.append(port)
            started.set()
            await asyncio.to_thread(stopped.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(30.0)
    yield f"http://127.0.0.1:{ports[0]}"
    stopped.set()
    thread.join(30.0)


@schema.parametrize()
@settings(
    max_examples=10 * EFFORT, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
)
def test_what_is_described_is_so(case: schemathesis.Case[Any], url: str) -> None:
    """No fault of the gateway's own, no status, type or shape that isn't written down."""
    response = case.call(base_url=url)
    # Bodies are the replica's to define: what the gateway reads of them may be refused.
    case.validate_response(response, excluded_checks=[positive_data_acceptance])
