"""The soak: what clients see, that every kind of miscounting is found, and a short one of the real thing."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.bars.bar import Bar
from loadtests.bars.soak.answers import Answer, View, view_of
from loadtests.bars.soak.caller import Caller, Seen
from loadtests.bars.soak.faults import Fault, conduct_of
from loadtests.bars.soak.held import Samples
from loadtests.bars.soak.reckoning import discrepancies
from loadtests.bars.soak.run import soak_bars
from loadtests.bars.soak.site import LEAVING, SCATTERED, STEADY_TENANTS, Site
from loadtests.bars.soak.visits import Request, visits

CHAT = "/v1/chat/completions"
WHOLE = json.dumps({"id": "soak-7", "num": 2, "text": "w0 w1 "}).encode()
OURS = {"x-tailgate-request-id": "tg-7"}


def stream(*events: dict[str, Any], number: int = 7) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps({"id": f"soak-{number}", **item}).encode() for item in events)


def word(index: int) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": f"w{index} "}}]}


def answer(body: bytes, status: int = 200, *, is_complete: bool = True, **headers: str) -> Answer:
    return Answer(status, {**OURS, **headers}, bytearray(body), is_complete)


@pytest.mark.parametrize(
    ("streams", "given", "view"),
    [
        (False, answer(WHOLE), View.OK),
        (False, answer(WHOLE.replace(b"soak-7", b"soak-8")), View.WRONG),
        (False, answer(WHOLE.replace(b"w1 ", b"")), View.WRONG),
        (False, answer(WHOLE[:-9]), View.WRONG),
        (False, answer(WHOLE, is_complete=False), View.BROKEN),
        (False, Answer(), View.UNANSWERED),
        (False, Answer(200, {}, bytearray(WHOLE), True), View.WRONG),
        (False, answer(b"{}", 429), View.TURNED_AWAY),
        (False, answer(b'{"error":"soak-replica"}', 429), View.FAILED),
        (False, answer(b"{}", 500), View.WRONG),
        (False, answer(b'{"error":"soak-replica"}', 500), View.FAILED),
        (False, answer(b"{}", 502), View.FAILED),
        (False, answer(b"{}", 404), View.BAD_REQUEST),
        (True, answer(stream(word(0), word(1), {"num": 2, "choices": []})), View.OK),
        (True, answer(stream(word(0), {"num": 2, "choices": []})), View.WRONG),
        (True, answer(stream(word(0), word(2), {"num": 2, "choices": []})), View.WRONG),
        (True, answer(stream(word(0), number=8)), View.WRONG),
        (True, answer(stream(word(0))), View.WRONG),
        (True, answer(stream(word(0), {"error": {"message": "x"}})), View.ERROR_EVENT),
    ],
)
def test_what_a_client_makes_of_an_answer(streams: bool, given: Answer, view: View) -> None:
    """Another request's answer, missing parts and faults inside the gateway are wrong, whatever the framing says."""
    assert view_of(Request(7, "one", CHAT, streams), given) is view


def test_a_seed_gives_the_same_visits_and_faults() -> None:
    """And another one gives others; every fault is drawn some time."""

    def drawn(seed: str) -> list[object]:
        plan = visits(seed, STEADY_TENANTS, leaving=LEAVING, scattered=SCATTERED)
        return list(itertools.islice(plan, 200))

    assert drawn("x") == drawn("x") != drawn("y")
    assert {conduct_of("x", number, "a").fault for number in range(5000)} == set(Fault)


def reckoned(tmp_path: Path, seen: list[Seen], lines: list[dict[str, Any]], journal: str, **counts: float) -> list[str]:
    """The discrepancies where the metrics have `counts` of the tenant `one` by outcome."""
    (tmp_path / "access.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in "abcd":
        (tmp_path / f"{name}.journal").write_text(journal if name == "a" else "")
    page: Samples = [
        ("tailgate_tenant_requests_total", {"tenant": "one", "outcome": outcome.replace("_", "-")}, count)
        for outcome, count in counts.items()
    ]
    page += [(name, {}, sum(counts.values())) for name in ("tailgate_requests_total", "tailgate_e2e_seconds_count")]
    caller = Caller(1, {})
    caller.seen = seen
    return discrepancies(caller, page, Site(1, "", None, (), {}, tmp_path))  # type: ignore[arg-type]


GOOD = Seen(7, "one", View.OK, 200, "tg-7")
LINE = {"request_id": "tg-7", "outcome": "ok", "status": 200, "reason": None}


@pytest.mark.parametrize(
    ("seen", "lines", "journal", "counts", "why"),
    [
        ([GOOD], [LINE], "7 begun\n7 whole\n", {"ok": 1}, ""),
        ([GOOD], [LINE], "7 begun\n", {"ok": 1}, ""),  # it died at the end of its answer
        ([GOOD], [LINE], "7 begun\n7 whole\n", {"ok": 2}, "1 by the clients, 2 by the gateway"),
        ([GOOD], [LINE], "7 begun\n7 whole\n", {"failed": 1}, "ok of one"),
        ([GOOD], [LINE, LINE], "7 begun\n7 whole\n", {"ok": 1}, "twice"),
        ([GOOD], [], "7 begun\n7 whole\n", {"ok": 1}, "isn't in the access log"),
        ([GOOD], [{**LINE, "status": 500}], "7 begun\n7 whole\n", {"ok": 1}, "status 200 for its client"),
        ([GOOD], [{**LINE, "outcome": "failed"}], "7 begun\n7 whole\n", {"ok": 1}, "failed in the log"),
        ([GOOD], [LINE], "7 begun\n7 broken\n", {"ok": 1}, "no replica gave a whole answer"),
        (
            [Seen(7, "one", View.BROKEN, 200, "tg-7")],
            [{**LINE, "outcome": "failed"}],
            "7 begun\n7 whole\n",
            {"failed": 1},
            "its client saw broken",
        ),
    ],
)
def test_what_does_not_add_up_is_found(
    tmp_path: Path,
    seen: list[Seen],
    lines: list[dict[str, Any]],
    journal: str,
    counts: dict[str, float],
    why: str,
) -> None:
    """Sums, outcomes, the log and the replicas' journals, each against the clients."""
    found = reckoned(tmp_path, seen, lines, journal, **counts)
    assert found == [] if not why else any(why in line for line in found), found


@pytest.mark.slow
async def test_a_short_soak() -> None:
    """A gateway and its replicas as processes: nothing is left, nothing is stuck, and everything adds up."""
    bars: list[Bar] = []
    await soak_bars(lambda text, total: lambda answer: None, bars.append, num_requests=400, num_connections=30)
    print(bars[0].note)
    # So few requests say nothing of memory.
    short = [bar for bar in bars if not bar.holds and bar.name != "soak-memory-ratio"]
    assert len(bars) == 8
    assert short == []
