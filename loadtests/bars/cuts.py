"""Clients that hang up: after many of them, nothing may be left behind in gateway or engine."""

from pathlib import Path

from ..client import LoadClient
from ..prompts import PromptMaker
from ..workload import PlannedRequest, rng_for
from .bar import Bar, at_least, at_most
from .metrics_text import sum_of
from .settling import settled

NUM_REQUESTS = 500
# Every fifth ends before its moment comes; this many leavers make 30 % that really left.
LEAVER_SHARE = 0.4
_SPAN_S = 45.0
_LATEST_CUT_S = 4.0
_CLOSE_WAIT = "08"


async def cut_bars(gateway: LoadClient, engine: LoadClient, maker: PromptMaker) -> list[Bar]:
    """500 requests through the gateway, 30 % of them cut at random moments; then what gateway and engine still hold.

    Waits for both to settle, 20 s at most; what is left then counts.
    """
    rng = rng_for("cuts")
    requests = [
        PlannedRequest(index, "cut", float(at), int(prompt), int(output))
        for index, (at, prompt, output) in enumerate(
            zip(
                sorted(rng.uniform(0.0, _SPAN_S, NUM_REQUESTS)),
                rng.integers(40, 160, NUM_REQUESTS),
                rng.integers(2, 9, NUM_REQUESTS),
                strict=True,
            )
        )
    ]
    cut = rng.permutation(NUM_REQUESTS)[: int(NUM_REQUESTS * LEAVER_SHARE)]
    leaves = {int(index): float(rng.uniform(0.0, _LATEST_CUT_S)) for index in cut}
    answers = await gateway.open_loop(
        requests,
        lambda request: maker.messages(request, "cuts"),
        limit_s=_SPAN_S + 180.0,
        leave_after_s=lambda request: leaves.get(request.index),
    )
    num_left = sum(answer.error == "left" for answer in answers)
    num_failed = sum(not answer.is_ok and answer.error != "left" for answer in answers)
    note = f"{num_left} of {len(answers)} cut, {num_failed} failed"
    held = await settled(lambda: _held(gateway, engine))
    sockets = _close_wait_sockets(engine.url)
    return [
        at_most("cuts-in-flight-left", held["in_flight"], 0.0, note),
        at_most("cuts-queued-left", held["queued"], 0.0),
        at_most("cuts-kv-cache-usage-left", held["kv_usage"], 0.0),
        at_most("cuts-engine-requests-left", held["engine_requests"], 0.0, "no connection is busy"),
        at_most("cuts-upstream-half-closed", sockets, 0.0, "sockets in CLOSE_WAIT towards the engine"),
        at_least("cuts-others-served-ratio", 1.0 - num_failed / len(answers), 1.0),
    ]


async def _held(gateway: LoadClient, engine: LoadClient) -> dict[str, float | None]:
    ours = (await gateway.get("/metrics"))[1].decode()
    theirs = (await engine.get("/metrics"))[1].decode()
    counts = [sum_of(theirs, f"vllm:num_requests_{state}") for state in ("running", "waiting")]
    return {
        "in_flight": sum_of(ours, "tailgate_requests_in_flight"),
        "queued": sum_of(ours, "tailgate_requests_queued"),
        "kv_usage": sum_of(theirs, "vllm:kv_cache_usage_perc"),
        "engine_requests": None if None in counts else sum(count or 0.0 for count in counts),
    }


def _close_wait_sockets(url: str) -> float | None:
    """Local TCP sockets that wait for this side to close them, towards the port of `url`; None outside Linux."""
    port = f"{int(url.rsplit(':', 1)[1]):04X}"
    try:
        rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    fields = [row.split() for row in rows]
    return float(sum(row[2].endswith(f":{port}") and row[3] == _CLOSE_WAIT for row in fields))
