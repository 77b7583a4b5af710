"""Requests that were measured on a real engine: what the simulator is fitted to, and judged by."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import TraceError
from ..traces.cells import cell, column_names, count, number, open_text, table_rows

_T = TypeVar("_T")
_COLUMNS = ("run", "request_id", "input_toks", "output_toks", "queued_s", "first_token_s", "last_token_s")


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """Instants of the engine's clock, from the run's first request."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    queued_s: float
    first_token_s: float
    last_token_s: float

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.queued_s

    @property
    def tpot_s(self) -> float | None:
        """None under two tokens."""
        if self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


def load_measured(path: str | Path) -> dict[str, tuple[MeasuredRequest, ...]]:
    """Runs by name, each in order of queueing: a CSV (plain or gzip) with a row a request, as LLMServingSim's benches,
    or the JSON that `tailgate-load replay` and `compare` save.

    Columns: `run`, `request_id`, `input_toks`, `output_toks`, and `queued_s`, `first_token_s`, `last_token_s` in
    seconds. Of a JSON's requests, those that failed are left out, and the client's clock stands for the engine's.
    Raises `TraceError` naming file, line and column.
    """
    path = Path(path)
    runs: dict[str, list[MeasuredRequest]] = {}
    with open_text(path) as lines:
        header = next(lines, "")
        if header.lstrip().startswith("{"):
            return _of_answers(path, header + "".join(lines))
        missing = [name for name in _COLUMNS if name not in (column_names(header) if header.strip() else [])]
        if missing:
            raise TraceError(str(path), 1, missing[0], f"no such column; measured requests have {', '.join(_COLUMNS)}")
        for line, row in table_rows(path, header, lines):
            runs.setdefault(row["run"], []).append(_request(path, line, row))
    return {name: _in_order(rows) for name, rows in runs.items()}


def _in_order(requests: Iterable[MeasuredRequest]) -> tuple[MeasuredRequest, ...]:
    return tuple(sorted(requests, key=lambda request: request.queued_s))


def _of_answers(path: Path, text: str) -> dict[str, tuple[MeasuredRequest, ...]]:
    """Requests as `Answer.to_dict` has them: a list, or a list by side of a comparison."""
    try:
        saved = json.loads(text)
    except ValueError as error:
        raise TraceError(str(path), getattr(error, "lineno", 1), None, f"not JSON: {error}") from error
    requests = saved.get("requests")
    sides = {"replay": requests} if isinstance(requests, list) else requests
    if not isinstance(sides, dict) or not all(isinstance(rows, list) for rows in sides.values()):
        raise TraceError(str(path), None, "requests", "missing: this isn't what replay or compare saved")
    return {
        name: _in_order(
            _answered(path, f"requests[{place}]", row)
            for place, row in enumerate(rows)
            if row.get("error") is None and row.get("first_s") is not None
        )
        for name, rows in sides.items()
    }


def _answered(path: Path, place: str, row: Mapping[str, Any]) -> MeasuredRequest:
    def value(key: str, parse: Callable[[Any], _T]) -> _T:
        return cell(path, 1, f"{place}.{key}", row.get(key), parse)

    return MeasuredRequest(
        request_id=str(row.get("index")),
        prompt_tokens=value("prompt_tokens", count),
        output_tokens=value("output_tokens", count),
        queued_s=value("sent_s", number),
        first_token_s=value("first_s", number),
        last_token_s=value("end_s", number),
    )


def _request(path: Path, line: int, row: dict[str, str]) -> MeasuredRequest:
    request = MeasuredRequest(
        request_id=row["request_id"],
        prompt_tokens=cell(path, line, "input_toks", row["input_toks"], count),
        output_tokens=cell(path, line, "output_toks", row["output_toks"], count),
        queued_s=cell(path, line, "queued_s", row["queued_s"], number),
        first_token_s=cell(path, line, "first_token_s", row["first_token_s"], number),
        last_token_s=cell(path, line, "last_token_s", row["last_token_s"], number),
    )
    if not request.queued_s <= request.first_token_s <= request.last_token_s:
        raise TraceError(str(path), line, "first_token_s", "queued, first token and last token must follow in time")
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise TraceError(str(path), line, "output_toks", "prompt and output must be at least one token each")
    return request


def peak_tokens(requests: Sequence[MeasuredRequest]) -> int:
    """The most tokens that were in memory at once, from first to last token of each request."""
    changes = [(request.first_token_s, request.prompt_tokens) for request in requests]
    changes += [(request.last_token_s, -request.prompt_tokens) for request in requests]
    peak = 0
    for now_s, _ in sorted(changes):
        held = 0.0
        for request in requests:
            if request.first_token_s <= now_s < request.last_token_s:
                share = (now_s - request.first_token_s) / (request.last_token_s - request.first_token_s)
                held += request.prompt_tokens + share * request.output_tokens
        peak = max(peak, round(held))
    return peak
