"""Everything that was counted, held against everything else: clients, metrics, access log, replicas.

Each request that a client began must be in the metrics once, by an outcome that fits what the client saw
(`answers.OUTCOMES`), and once in the access log, with the same status and outcome. What a client that stayed saw as a
whole answer some replica must have given whole, and the other way round.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .answers import OUTCOMES, View
from .caller import Caller, Seen
from .held import Samples, sum_of
from .site import LEAVING, SCATTERED, Site

_REASONS = ("bad-http", "head-too-large", "head-timeout", "too-much-ahead", "too-many-connections")
_CUT_BY_GATEWAY = frozenset({"upstream-timeout", "client-stalled"})
_TURNED_AWAY = "rejected or evicted"


def discrepancies(caller: Caller, page: Samples, site: Site) -> list[str]:
    """One line for each that doesn't match; of sums as many as they differ by."""
    log = _read_log(site.access_log)
    return [
        *_sums(caller, page),
        *_refusals(caller, page),
        *_lines(caller.seen, log, page),
        *_replicas(caller.seen, log, site.journals()),
    ]


def _differ(what: str, wanted: float, found: float) -> list[str]:
    return [f"{what}: {wanted:g} by the clients, {found:g} by the gateway"] * int(abs(wanted - found))


def _sums(caller: Caller, page: Samples) -> list[str]:
    found: list[str] = []
    begun = Counter(seen.tenant for seen in caller.seen)
    for tenant, count in begun.items():
        if tenant:
            found += _differ(
                f"requests of {tenant}", count, sum_of(page, "tailgate_tenant_requests_total", tenant=tenant)
            )
    least, most = caller.num_scattered
    scattered = sum_of(page, "tailgate_tenant_requests_total", tenant=SCATTERED)
    if not least <= scattered <= most:
        found.append(f"requests of {SCATTERED}: {least} to {most} by the clients, {scattered:g} by the gateway")
    total = sum_of(page, "tailgate_requests_total")
    found += _differ("requests in all", len(caller.seen) + scattered, total)
    found += _differ("requests with a duration", total, sum_of(page, "tailgate_e2e_seconds_count"))
    for tenant in begun.keys() - {"", LEAVING}:
        views = Counter(_group(OUTCOMES.get(seen.view)) for seen in caller.seen if seen.tenant == tenant)
        outcomes = Counter[str]()
        for name, labels, value in page:
            if name == "tailgate_tenant_requests_total" and labels["tenant"] == tenant:
                outcomes[_group({labels["outcome"]})] += int(value)
        for outcome in views.keys() | outcomes.keys():
            found += _differ(f"{outcome} of {tenant}", views[outcome], outcomes[outcome])
    return found


def _group(outcomes: Iterable[str] | None) -> str:
    """Which of the two turned a request away its client can't know."""
    names = set(outcomes or {"a fault"})
    return _TURNED_AWAY if names <= {"rejected", "evicted"} else " or ".join(sorted(names))


def _refusals(caller: Caller, page: Samples) -> list[str]:
    return [
        line
        for reason in _REASONS
        for line in _differ(
            f"refused as {reason}", caller.refused[reason], sum_of(page, "tailgate_refused_total", reason=reason)
        )
    ]


def _read_log(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _lines(seen: list[Seen], log: list[dict[str, Any]], page: Samples) -> list[str]:
    found = _differ("lines of the access log", len(log), sum_of(page, "tailgate_requests_total"))
    by_id = {line["request_id"]: line for line in log}
    found += [f"{len(log) - len(by_id)} ids twice in the access log"] * (len(log) - len(by_id))
    for item in seen:
        if item.request_id is None:
            continue
        line = by_id.get(item.request_id)
        if line is None:
            found.append(f"request {item.number} isn't in the access log")
        elif line["outcome"] not in OUTCOMES.get(item.view, ()):
            found.append(f"request {item.number}: {item.view} for its client, {line['outcome']} in the log: {line}")
        elif line["status"] != item.status and item.view is not View.LEFT:
            found.append(f"request {item.number}: status {item.status} for its client, {line['status']} in the log")
    return found


def _replicas(seen: list[Seen], log: list[dict[str, Any]], journals: list[Path]) -> list[str]:
    begun: Counter[int] = Counter()
    ended: dict[str, Counter[int]] = {}
    for journal in journals:
        for line in journal.read_text(encoding="ascii").splitlines():
            number, _, word = line.partition(" ")
            if word == "begun":
                begun[int(number)] += 1
            else:
                ended.setdefault(word, Counter())[int(number)] += 1
    whole = ended.get("whole", Counter[int]())
    num_ended = sum(ended.values(), Counter[int]())
    reasons = {line["request_id"]: line["reason"] for line in log}
    found = []
    for item in seen:
        # A replica that died didn't write how its last calls ended.
        has_died = begun[item.number] > num_ended[item.number]
        # An error event may be the gateway's own, about an answer that broke off: HTTP/1.0 has no other way to tell.
        is_good = item.view in (View.OK, View.ERROR_EVENT)
        if item.view is View.OK and not whole[item.number] and not has_died:
            found.append(f"request {item.number}: {item.view} for its client, and no replica gave a whole answer")
        elif (
            whole[item.number]
            and not is_good
            and item.view is not View.LEFT
            and reasons.get(item.request_id) not in _CUT_BY_GATEWAY
        ):
            found.append(f"request {item.number}: a replica gave a whole answer, its client saw {item.view}")
    return found
