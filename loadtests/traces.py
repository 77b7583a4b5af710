"""Loaders of public LLM request traces: lengths, arrivals, tenants and prefix blocks, never prompt text.

A format is recognised by its columns. Known formats and their origins:

- `azure` (2023, 2024): `TIMESTAMP,ContextTokens,GeneratedTokens`; Azure/AzurePublicDataset, CC-BY 4.0.
- `mooncake`: JSON lines `timestamp` (ms), `input_length`, `output_length`, `hash_ids`; kvcache-ai/Mooncake, Apache-2.0.
- `burstgpt`: `Timestamp,[Session ID],Request tokens,Response tokens`; HPMLL/BurstGPT, CC-BY 4.0.
- `servegen`: `timestamp,client_id,input_tokens,output_tokens`, drawn from alibaba/ServeGen's statistics, Apache-2.0.
- `vtc`: `req_time,adapter_dir,prompt_len,output_len`; Ying1123/VTC-artifact, Apache-2.0.
- `arxiv`: `num_prefill_tokens,num_decode_tokens`, without arrivals; microsoft/vidur, MIT.
"""

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import TraceError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival; all arrays have shape [num_requests].

    `arrival_s` counts from the first request and is None where the format has no arrivals. `tenant` holds small
    integers, None where the format has none. `block_ids[i]` are the prefix blocks of request i (Mooncake only:
    one id per 512 tokens, equal leading ids mean an equal prefix).
    """

    format: str
    arrival_s: NDArray[np.float64] | None
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    tenant: NDArray[np.int64] | None = None
    block_ids: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class _Format:
    name: str
    arrival: str | None
    prompt: str
    output: str
    tenant: str | None
    origin: str
    licence: str


_FORMATS = (
    _Format(
        "azure",
        "TIMESTAMP",
        "ContextTokens",
        "GeneratedTokens",
        None,
        "Azure/AzurePublicDataset, LLM inference trace",
        "CC-BY 4.0",
    ),
    _Format(
        "burstgpt",
        "Timestamp",
        "Request tokens",
        "Response tokens",
        "Session ID",
        "HPMLL/BurstGPT",
        "CC-BY 4.0",
    ),
    _Format(
        "servegen",
        "timestamp",
        "input_tokens",
        "output_tokens",
        "client_id",
        "sampled from alibaba/ServeGen",
        "Apache-2.0",
    ),
    _Format("vtc", "req_time", "prompt_len", "output_len", "adapter_dir", "Ying1123/VTC-artifact", "Apache-2.0"),
    _Format(
        "arxiv",
        None,
        "num_prefill_tokens",
        "num_decode_tokens",
        None,
        "microsoft/vidur, arXiv summarisation lengths",
        "MIT",
    ),
)
_MOONCAKE = _Format(
    "mooncake", "timestamp", "input_length", "output_length", None, "kvcache-ai/Mooncake, FAST25 traces", "Apache-2.0"
)


def attribution(format_name: str) -> tuple[str, str]:
    """Origin and licence of a format. Raises KeyError for an unknown one."""
    return {known.name: (known.origin, known.licence) for known in (*_FORMATS, _MOONCAKE)}[format_name]


def load_trace(path: str | Path) -> Trace:
    """Reads a trace, plain or gzip, of any known format.

    Raises `TraceError` naming file, line (from 1) and column for an unknown format, a value of the wrong type, a
    negative length, or an empty file.
    """
    path = Path(path)
    try:
        with _open_text(path) as lines:
            first = next(lines, "")
            if not first.strip():
                raise TraceError(str(path), 1, None, "the file is empty")
            if first.lstrip().startswith("{"):
                return _load_mooncake(path, first, lines)
            return _load_csv(path, first, lines)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise TraceError(str(path), None, None, f"cannot be read: {why}") from error


@contextmanager
def _open_text(path: Path) -> Iterator[Iterator[str]]:
    """Lines of a plain or gzip text file; which one is told by the magic bytes, not by the name."""
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rt", encoding="utf-8") if is_gzip else path.open("rt", encoding="utf-8") as file:
        yield iter(file)


def _load_csv(path: Path, header: str, lines: Iterator[str]) -> Trace:
    columns = next(csv.reader([header.lstrip("\ufeff")]))
    for form in _FORMATS:
        if {form.prompt, form.output} <= set(columns) and (form.arrival is None or form.arrival in columns):
            break
    else:
        known = "; ".join(f"{form.name}: {form.prompt},{form.output}" for form in _FORMATS)
        raise TraceError(str(path), 1, None, f"no known format has the columns {','.join(columns)} (known: {known})")
    place = {name: index for index, name in enumerate(columns)}
    tenant_column = form.tenant if form.tenant in place else None
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    tenants: list[str] = []
    for number, row in enumerate(csv.reader(lines), start=2):
        if not row:
            continue
        if len(row) != len(columns):
            raise TraceError(str(path), number, None, f"{len(row)} columns where the header has {len(columns)}")
        if form.arrival is not None:
            arrivals.append(_cell(path, number, form.arrival, row[place[form.arrival]], _instant_s))
        prompts.append(_cell(path, number, form.prompt, row[place[form.prompt]], _count))
        outputs.append(_cell(path, number, form.output, row[place[form.output]], _count))
        if tenant_column is not None:
            tenants.append(row[place[tenant_column]])
    return _finish(path, form.name, arrivals if form.arrival else None, prompts, outputs, tenants or None, None)


def _load_mooncake(path: Path, first: str, lines: Iterator[str]) -> Trace:
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    blocks: list[tuple[int, ...]] = []
    number = 1
    line: str | None = first
    while line is not None:
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TraceError(str(path), number, None, f"not JSON: {error}") from error
            if not isinstance(row, dict):
                raise TraceError(str(path), number, None, "not a JSON object")
            arrivals.append(_cell(path, number, "timestamp", row.get("timestamp"), _number) / 1000.0)
            prompts.append(_cell(path, number, "input_length", row.get("input_length"), _count))
            outputs.append(_cell(path, number, "output_length", row.get("output_length"), _count))
            blocks.append(_cell(path, number, "hash_ids", row.get("hash_ids", []), _block_ids))
        line = next(lines, None)
        number += 1
    return _finish(path, "mooncake", arrivals, prompts, outputs, None, blocks)


def _finish(
    path: Path,
    name: str,
    arrivals: list[float] | None,
    prompts: list[int],
    outputs: list[int],
    tenants: list[str] | None,
    blocks: list[tuple[int, ...]] | None,
) -> Trace:
    if not prompts:
        raise TraceError(str(path), 1, None, "the file has no requests")
    order = np.arange(len(prompts)) if arrivals is None else np.argsort(np.asarray(arrivals), kind="stable")
    arrival_s = None
    if arrivals is not None:
        arrival_s = np.asarray(arrivals, dtype=np.float64)[order]
        arrival_s = arrival_s - arrival_s[0]
    tenant = None
    if tenants is not None:
        number = {name: index for index, name in enumerate(dict.fromkeys(tenants))}
        tenant = np.asarray([number[value] for value in tenants], dtype=np.int64)[order]
    return Trace(
        format=name,
        arrival_s=arrival_s,
        prompt_tokens=np.asarray(prompts, dtype=np.int64)[order],
        output_tokens=np.asarray(outputs, dtype=np.int64)[order],
        tenant=tenant,
        block_ids=None if blocks is None else tuple(blocks[index] for index in order),
    )


def _cell(path: Path, line: int, column: str, value: Any, parse: Callable[[Any], _T]) -> _T:
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        raise TraceError(str(path), line, column, f"{value!r}: {error}") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or value is None:
        raise ValueError("not a number")
    number = float(value)
    if not np.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _count(value: Any) -> int:
    number = _number(value)
    if number < 0 or number != int(number):
        raise ValueError("not a whole number of tokens from 0")
    return int(number)


def _instant_s(value: str) -> float:
    """Seconds: a number as it is, or a UTC date with up to seven decimals (Azure), of which six count."""
    try:
        return _number(value)
    except ValueError:
        head, _, fraction = value.strip().partition(".")
        digits = fraction.split("+")[0].rstrip("Z")
        moment = datetime.fromisoformat(head).replace(tzinfo=UTC)
        return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)


def _block_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("not a list of block ids")
    return tuple(_count(item) for item in value)
