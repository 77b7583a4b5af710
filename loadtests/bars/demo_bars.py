"""What the demonstration must show, from several seeds, and what its records say about the layers."""

from collections.abc import Sequence

from ..client import LoadClient
from ..compare import Comparison
from ..layers import check_layers, read_records
from ..prompts import PromptMaker
from ..summary import compare_sides
from ..workload import PlannedRequest
from .bar import Bar, at_least, median_of_rounds

_NUM_ALONE = 60


def demo_bars(comparisons: Sequence[Comparison]) -> list[Bar]:
    """Medians over the seeds, gateway over direct; failed requests on either side make a round worthless."""
    rounds = [
        compare_sides(item.direct.answers, item.gateway.answers, item.scenario) if _is_whole(item) else None
        for item in comparisons
    ]
    short, long = comparisons[0].scenario.lanes[0].name, comparisons[0].scenario.lanes[-1].name

    def of(lane: str, metric: str, level: str) -> list[float | None]:
        return [None if each is None else each["lanes"][lane][metric][level]["value"] for each in rounds]

    rates = [None if each is None else each["tokens_per_s_ratio"] for each in rounds]
    checks = [item.layers for item in comparisons]
    num_requests = sum(check.num_requests for check in checks)
    small_other = sum(check.small_other_ratio * check.num_requests for check in checks) / max(1, num_requests)
    agrees = sum(check.total_agrees_ratio * check.num_requests for check in checks) / max(1, num_requests)
    return [
        median_of_rounds("demo-short-ttft-p95-ratio", "<=", of(short, "ttft_s", "95"), 0.5),
        median_of_rounds("demo-tokens-per-s-ratio", ">=", rates, 0.95),
        median_of_rounds("demo-long-e2e-p90-ratio", "<=", of(long, "e2e_s", "90"), 1.2),
        at_least("layers-other-small-ratio", small_other, 0.999, f"{num_requests} requests of the demo"),
        at_least("layers-total-fits-client-under-load-ratio", agrees, 0.95, f"{num_requests} requests of the demo"),
    ]


async def total_bar(gateway: LoadClient, maker: PromptMaker) -> Bar:
    """Requests sent one at a time: share whose total is within 2 % or 5 ms of the client's clock."""
    requests = [PlannedRequest(index, "alone", 0.0, 48 + index, 1 + index % 12) for index in range(_NUM_ALONE)]
    answers = await gateway.closed_loop(requests, lambda request: maker.messages(request, "alone"), num_clients=1)
    check = check_layers(answers, await read_records(gateway, answers))
    note = f"{check.num_requests} requests alone, worst gap {check.worst_total_gap_ms:.2f} ms"
    return at_least("layers-total-fits-client-ratio", check.total_agrees_ratio, 0.999, note)


def _is_whole(comparison: Comparison) -> bool:
    return all(answer.is_ok for side in (comparison.direct, comparison.gateway) for answer in side.answers)
