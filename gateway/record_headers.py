"""What a response's head says of its request: where its time went, and what was decided about it.

Every value is of our making: a number, or a name that was configured, which may hold what a header can't.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from policies.types import Lane

from .attribution import LAYER_NAMES, Layer, Record
from .errors import Headers

# Most layers last less than a millisecond, and formatting a float takes longer than all else here.
_UNDER_A_MS = tuple(f"0.{us:03d}" for us in range(1000))
_TIMING_OF = {layer: f", {name};dur=" for layer, name in LAYER_NAMES.items()}


def headers(record: Record) -> Headers:
    """As names and values."""
    lines = head_lines(record).splitlines()
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


def head_lines(record: Record) -> bytes:
    """As lines of a head, each with its end."""
    parts = [f"x-tailgate-request-id: {record.request_id}\r\n"]
    if record.layers:
        parts += ("server-timing: ", server_timing(record), "\r\n")
    if record.prompt_tokens is not None:
        parts.append(f"x-tailgate-prompt-tokens: {record.prompt_tokens}\r\n")
    if record.predicted_output_tokens is not None:
        parts.append(f"x-tailgate-predicted-output-tokens: {record.predicted_output_tokens}\r\n")
    if record.has_diagnostics:
        parts.append(_decided(record.lane, record.attempt, record.replica_id, record.policy, record.reason))
    else:
        parts.append(_decided(record.lane, record.attempt, None, "", None))
    lines = "".join(parts).encode()
    if record.standing is not None:
        lines += b"".join([b"%b: %b\r\n" % header for header in record.standing.headers()])
    return lines


def server_timing(record: Record) -> str:
    """The layers closed so far, in the syntax of W3C Server-Timing, in milliseconds."""
    parts: list[str] = []
    notes: Mapping[Layer, str] = record.notes if record.has_diagnostics else record.plain_notes()
    for layer, duration_s in record.layers.items():
        us = int(duration_s * 1e6 + 0.5)
        parts += (_TIMING_OF[layer], _UNDER_A_MS[us] if us < 1000 else f"{us // 1000}{_UNDER_A_MS[us % 1000][1:]}")
        if layer in notes:
            parts.append(_described(notes[layer]))
    return "".join(parts)[2:]


@lru_cache(maxsize=1024)
def _decided(lane: Lane | None, attempt: int, replica_id: str | None, policy: str, reason: str | None) -> str:
    """Lines that few requests have to themselves."""
    return "".join(_decided_lines(lane, attempt, replica_id, policy, reason))


def _decided_lines(
    lane: Lane | None, attempt: int, replica_id: str | None, policy: str, reason: str | None
) -> Iterator[str]:
    if lane is not None:
        yield f"x-tailgate-lane: {lane.value}\r\n"
    if attempt:
        yield f"x-tailgate-attempt: {attempt}\r\n"
    if replica_id is not None:
        yield f"x-tailgate-replica: {_printable(replica_id)}\r\n"
    if policy:
        yield f"x-tailgate-policy: {_printable(policy)}\r\n"
    if reason is not None:
        yield f"x-tailgate-reason: {_printable(reason)}\r\n"


@lru_cache(maxsize=1024)
def _described(note: str) -> str:
    quoted = _printable(note).replace("\\", "\\\\").replace('"', '\\"')
    return f';desc="{quoted}"'


def _printable(text: str) -> str:
    return text.encode("ascii", "replace").decode() if text.isprintable() else "?"
