"""What a replica says it counted: the `usage` of an answer, or of a stream's chunk."""

from collections.abc import Callable
from typing import NamedTuple

from . import lenient_json


class Usage(NamedTuple):
    """What a replica said it counted; vLLM's measured times in seconds where it sends them. None: it didn't say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None


def read_usage(answer: object) -> Usage | None:
    """The usage in a parsed answer or chunk, None if there is none. Members of unexpected types count as unsaid."""
    if type(answer) is not dict:
        return None
    usage = answer.get("usage")
    if type(usage) is not dict:
        return None
    details = usage.get("prompt_tokens_details")
    metrics = answer.get("metrics")
    queue_s = prefill_s = None
    if type(metrics) is dict:
        queue_s, prefill_s = _seconds(metrics.get("queue_time_ms")), _seconds(metrics.get("time_to_first_token_ms"))
    return Usage(
        read_count(usage.get("prompt_tokens")),
        read_count(usage.get("completion_tokens")),
        read_count(details.get("cached_tokens")) if type(details) is dict else None,
        queue_s,
        prefill_s,
    )


def usage_of_answer(
    body: bytes, read: Callable[[object], Usage | None] = read_usage, *, max_bytes: int = 1 << 18
) -> Usage | None:
    """The usage of a whole answer, None if it has none that can be found.

    Up to `max_bytes` the answer is parsed; of a larger one only an object `usage` in its last 16 KiB is, as every
    known server writes it behind the choices.
    """
    if len(body) > max_bytes:
        tail = body[-(1 << 14) :]
        start = tail.rfind(b'"usage"')
        end = tail.find(b"}", start)
        while start >= 0 and end >= 0:
            try:
                return read(lenient_json.loads(b"{" + tail[start : end + 1] + b"}"))
            except ValueError:
                end = tail.find(b"}", end + 1)
        return None
    try:
        return read(lenient_json.loads(body))
    except ValueError:
        return None


def read_count(value: object) -> int | None:
    """A count of tokens; None for what is none."""
    return value if type(value) is int and value >= 0 else None


def _seconds(value: object) -> float | None:
    return value / 1e3 if (type(value) is float or type(value) is int) and value >= 0 else None
