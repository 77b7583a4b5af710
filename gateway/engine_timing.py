"""What a replica measured about its own work, from the head of its answer.

The bundled engine sends the head with the first token and puts its own times into it:
`Server-Timing: backend-queue;dur=MS, backend-prefill;dur=MS[, backend-decode;dur=MS], backend-cached;desc="N"`.
"""

from dataclasses import dataclass

from .errors import Headers


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """Seconds in the engine's queue, in prefill, and in decode (whole answers only); cached prompt tokens."""

    queue_s: float
    prefill_s: float
    decode_s: float | None
    cached_tokens: int | None


def read_engine_timing(headers: Headers) -> EngineTiming | None:
    """None where the replica didn't measure, or wrote something that isn't understood."""
    found: dict[bytes, dict[bytes, bytes]] = {}
    for name, value in headers:
        if name == b"server-timing" and b"backend-" in value:
            for metric in value.split(b","):
                label, *params = (part.strip() for part in metric.split(b";"))
                found[label] = {
                    key.strip().lower(): text.strip().strip(b'"')
                    for key, _, text in (param.partition(b"=") for param in params)
                }
    if not found:
        return None
    queue_s = _seconds(found.get(b"backend-queue"))
    prefill_s = _seconds(found.get(b"backend-prefill"))
    if queue_s is None or prefill_s is None:
        return None
    cached = found.get(b"backend-cached", {}).get(b"desc", b"")
    return EngineTiming(
        queue_s=queue_s,
        prefill_s=prefill_s,
        decode_s=_seconds(found.get(b"backend-decode")),
        cached_tokens=int(cached) if cached.isdigit() else None,
    )


def _seconds(params: dict[bytes, bytes] | None) -> float | None:
    if params is None:
        return None
    try:
        milliseconds = float(params.get(b"dur", b""))
    except ValueError:
        return None
    return milliseconds / 1e3 if 0.0 <= milliseconds < 1e9 else None
