"""The figures of one side of a run: by lane and over all, as plain values that go to JSON and into tables."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .answer import Answer
from .scenario import Objectives, Scenario
from .stats import makespan_s, meets, paired_ratio, paired_values, percentile, percentile_estimate
from .workload import rng_for

LEVELS = (50, 90, 95, 99)
_METRICS: dict[str, Callable[[Answer], float | None]] = {
    "ttft_s": lambda answer: answer.ttft_s,
    "tpot_s": lambda answer: answer.tpot_s,
    "e2e_s": lambda answer: answer.e2e_s,
}


def summarise(answers: Sequence[Answer], objectives: Mapping[str, Objectives]) -> dict[str, Any]:
    """Counts, errors, percentiles with intervals by lane, token rates, goodput, and the client's own lag.

    `objectives`: of every lane that there is.
    """
    span_s = makespan_s(answers)
    num_good = sum(meets(answer, objectives[answer.lane]) for answer in answers)
    complete = [answer for answer in answers if answer.is_ok]
    output_tokens = sum(answer.received_tokens for answer in complete)
    all_tokens = output_tokens + sum(answer.received_prompt_tokens for answer in complete)
    lags = [answer.lag_s for answer in answers]
    return {
        "num_requests": len(answers),
        "num_ok": len(complete),
        "errors": dict(Counter(answer.error or "no-text" for answer in answers if not answer.is_ok)),
        "makespan_s": span_s,
        "output_tokens_per_s": output_tokens / span_s if span_s else None,
        "tokens_per_s": all_tokens / span_s if span_s else None,
        "goodput_per_s": num_good / span_s if span_s else None,
        "goodput_ratio": num_good / len(answers) if answers else None,
        "client_lag_s": {str(level): percentile(lags, level) for level in (50, 99)} | {"max": max(lags, default=None)},
        "reused_connections_ratio": (
            sum(answer.is_reused_connection for answer in answers) / len(answers) if answers else None
        ),
        "lanes": {name: _lane([a for a in answers if a.lane == name], wanted) for name, wanted in objectives.items()},
    }


def _lane(answers: Sequence[Answer], objectives: Objectives) -> dict[str, Any]:
    complete = [answer for answer in answers if answer.is_ok]
    out: dict[str, Any] = {
        "num_requests": len(answers),
        "num_ok": len(complete),
        "prompt_tokens": sum(answer.received_prompt_tokens for answer in complete),
        "output_tokens": sum(answer.received_tokens for answer in complete),
        "goodput_ratio": (sum(meets(answer, objectives) for answer in answers) / len(answers) if answers else None),
    }
    samples = {name: [v for a in complete if (v := read(a)) is not None] for name, read in _METRICS.items()}
    samples["itl_s"] = [gap for answer in complete for gap in answer.itl_s]
    for name, values in samples.items():
        out[name] = {
            str(level): percentile_estimate(values, level, rng_for("bootstrap", name, level)).to_dict()
            if name != "itl_s"
            else {"value": percentile(values, level)}
            for level in LEVELS
        }
    return out


def compare_sides(direct: Sequence[Answer], gateway: Sequence[Answer], scenario: Scenario) -> dict[str, Any]:
    """Gateway over direct: percentile ratios by lane (paired by request), token rates, and the harm ratio.

    The harm ratio is the P99 E2E of the last lane through the gateway over the same without it.
    """
    ratios: dict[str, Any] = {}
    for lane in scenario.lanes:
        ours = [answer for answer in gateway if answer.lane == lane.name and answer.is_ok]
        theirs = [answer for answer in direct if answer.lane == lane.name and answer.is_ok]
        ratios[lane.name] = {}
        for name, read in _METRICS.items():
            left, right = paired_values(ours, theirs, read)
            ratios[lane.name][name] = {
                str(level): paired_ratio(left, right, level, rng_for("paired", name, level)).to_dict()
                for level in LEVELS
            }
    rates = [_token_rate(answers) for answers in (gateway, direct)]
    return {
        "lanes": ratios,
        "tokens_per_s_ratio": rates[0] / rates[1] if rates[1] else None,
        "harm_ratio": ratios[scenario.lanes[-1].name]["e2e_s"]["99"],
    }


def _token_rate(answers: Sequence[Answer]) -> float:
    span_s = makespan_s(answers)
    complete = [answer for answer in answers if answer.is_ok]
    tokens = sum(answer.received_tokens + answer.received_prompt_tokens for answer in complete)
    return tokens / span_s if span_s else 0.0
