"""Two policies on the same requests: differences by stretch of the trace, the unit that a replay gives.

Waiting times of neighbours depend on each other, so single requests are no sample. Stretches of the same requests
under both policies are compared, and their differences resampled.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..answer import Answer
from ..workload import rng_for
from .simulation import Result

NUM_SEGMENTS = 20
LEVELS = (50, 90, 99)
_NUM_RESAMPLES = 2000


def paired_differences(
    ours: Result, theirs: Result, group: str, *, num_segments: int = NUM_SEGMENTS
) -> dict[str, dict[str, Any]]:
    """Of a group's time to first token, `ours` minus `theirs`, in seconds, by percentile.

    Each percentile is taken in each of `num_segments` stretches of equal length in requests, for both; `mean_s` is the
    mean of the differences, `low_s` and `high_s` its 95 % interval (bootstrap over stretches), `num_better` how many
    stretches were better under `ours`. Where a stretch has too few requests of the group for a percentile (fewer than
    1 / (1 - level)), the entry has only `needed_requests`: how many of the group the whole trace would need.

    Raises ValueError unless both have the same requests.
    """
    left, right = _first_tokens(ours, group), _first_tokens(theirs, group)
    if left.keys() != right.keys():
        raise ValueError("the two results are not of the same requests")
    both = [(left[index], right[index]) for index in sorted(left) if left[index] is not None]
    pairs = [(one, other) for one, other in both if one is not None and other is not None]
    parts = [part for part in np.array_split(np.asarray(pairs).reshape(-1, 2), num_segments) if len(part)]
    differences: dict[str, dict[str, Any]] = {}
    for level in LEVELS:
        least = round(100.0 / (100.0 - level))
        if len(parts) < num_segments or min(map(len, parts)) < least:
            differences[str(level)] = {"needed_requests": least * num_segments}
            continue
        values = np.array([np.percentile(part[:, 0], level) - np.percentile(part[:, 1], level) for part in parts])
        picks = rng_for("paired", group, level).integers(0, num_segments, size=(_NUM_RESAMPLES, num_segments))
        low_s, high_s = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
        differences[str(level)] = {
            "mean_s": float(values.mean()),
            "low_s": float(low_s),
            "high_s": float(high_s),
            "num_better": int((values < 0.0).sum()),
            "num_segments": num_segments,
        }
    return differences


def _first_tokens(result: Result, group: str) -> dict[int, float | None]:
    answers: Sequence[Answer] = result.answers()
    return {answer.index: answer.ttft_s for answer in answers if answer.lane == group}
