"""Traces and results that are JSON: an object a line, or vLLM's one object of lists."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import TraceError
from .cells import block_ids, cell, count, number
from .trace import Trace, make_trace


@dataclass(frozen=True, slots=True)
class LineFormat:
    """A JSON object a line. A key with a dot is inside an object; `key` in `marks` tells the format.

    `seconds`: of one unit of the arrival. `block_tokens`: of one prefix id. A line whose `skip_if` key is true is one
    that failed or was cancelled, and no request of the trace.
    """

    name: str
    marks: str
    arrival: str
    seconds: float
    prompt: str
    output: str
    tenant: str | None
    blocks: str | None
    block_tokens: int | None
    skip_if: tuple[str, ...]
    origin: str
    licence: str


LINES = (
    LineFormat(
        "aiperf",
        "metadata",
        "metadata.request_start_ns",
        1e-9,
        "metrics.input_sequence_length.value",
        "metrics.output_sequence_length.value",
        None,
        None,
        None,
        ("error", "metadata.was_cancelled"),
        "a result of ai-dynamo/aiperf, profile_export.jsonl",
        "its owner's",
    ),
    LineFormat(
        "qwen-bailian",
        "chat_id",
        "timestamp",
        1.0,
        "input_length",
        "output_length",
        "type",
        "hash_ids",
        16,
        (),
        "alibaba-edu/qwen-bailian-usagetraces-anon",
        "Apache-2.0",
    ),
    LineFormat(
        "mooncake",
        "timestamp",
        "timestamp",
        1e-3,
        "input_length",
        "output_length",
        None,
        "hash_ids",
        512,
        (),
        "kvcache-ai/Mooncake, FAST25 traces",
        "Apache-2.0",
    ),
)
VLLM = ("vllm", "a result of vLLM's serving benchmark, saved with details", "its owner's")


def load_json(path: Path, first: str, lines: Iterator[str]) -> Trace:
    """Whichever it is, its first line having been read. Raises `TraceError`."""
    if '"input_lens"' in first or first.strip() == "{":
        return _load_vllm(path, first + "".join(lines))
    rows = list(_objects(path, first, lines))
    form = next((form for form in LINES if rows and form.marks in rows[0][1]), None)
    if form is None:
        known = ", ".join((*(form.name for form in LINES), VLLM[0]))
        raise TraceError(str(path), 1, None, f"no known format has the keys of the first line (known: {known})")
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    tenants: list[str] = []
    blocks: list[tuple[int, ...]] = []
    for line, row in rows:
        if any(_get(row, key) for key in form.skip_if):
            continue
        arrivals.append(cell(path, line, form.arrival, _get(row, form.arrival), number) * form.seconds)
        prompts.append(cell(path, line, form.prompt, _get(row, form.prompt), count))
        outputs.append(cell(path, line, form.output, _get(row, form.output), count))
        if form.tenant is not None:
            tenants.append(str(_get(row, form.tenant)))
        if form.blocks is not None:
            blocks.append(cell(path, line, form.blocks, row.get(form.blocks, []), block_ids))
    return make_trace(
        path, form.name, arrivals, prompts, outputs, tenants or None, blocks if form.blocks else None, form.block_tokens
    )


def _objects(path: Path, first: str, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    line_number = 1
    line: str | None = first
    while line is not None:
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TraceError(str(path), line_number, None, f"not JSON: {error}") from error
            if not isinstance(row, dict):
                raise TraceError(str(path), line_number, None, "not a JSON object")
            yield line_number, row
        line = next(lines, None)
        line_number += 1


def _get(row: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None where there is none."""
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _load_vllm(path: Path, text: str) -> Trace:
    """One object with a list for each figure. Requests without an output failed, and are left out."""
    try:
        result = json.loads(text)
    except ValueError as error:
        raise TraceError(str(path), getattr(error, "lineno", 1), None, f"not JSON: {error}") from error
    columns = {}
    for name in ("input_lens", "output_lens", "start_times"):
        values = result.get(name) if isinstance(result, dict) else None
        if not isinstance(values, list):
            raise TraceError(
                str(path), 1, name, "missing: a result of vLLM's benchmark has its requests only with --save-detailed"
            )
        columns[name] = values
    if len({len(values) for values in columns.values()}) != 1:
        raise TraceError(str(path), 1, "start_times", "lists of different lengths")
    arrivals, prompts, outputs = [], [], []
    for place, (prompt, output, start) in enumerate(zip(*columns.values(), strict=True)):
        if not output:
            continue
        prompts.append(cell(path, 1, f"input_lens[{place}]", prompt, count))
        outputs.append(cell(path, 1, f"output_lens[{place}]", output, count))
        arrivals.append(cell(path, 1, f"start_times[{place}]", start, number))
    return make_trace(path, VLLM[0], arrivals, prompts, outputs)
