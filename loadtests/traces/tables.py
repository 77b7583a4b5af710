"""Traces that are CSV tables, each known by its columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import TraceError
from .cells import cell, column_names, count, instant_s, table_rows
from .trace import Trace, make_trace


@dataclass(frozen=True, slots=True)
class TableFormat:
    """Names of the columns; None where the format has none."""

    name: str
    arrival: str | None
    prompt: str
    output: str
    tenant: str | None
    origin: str
    licence: str


TABLES = (
    TableFormat(
        "azure",
        "TIMESTAMP",
        "ContextTokens",
        "GeneratedTokens",
        None,
        "Azure/AzurePublicDataset, LLM inference trace",
        "CC-BY 4.0",
    ),
    TableFormat(
        "burstgpt", "Timestamp", "Request tokens", "Response tokens", "Session ID", "HPMLL/BurstGPT", "CC-BY 4.0"
    ),
    TableFormat(
        "servegen",
        "timestamp",
        "input_tokens",
        "output_tokens",
        "client_id",
        "sampled from alibaba/ServeGen",
        "Apache-2.0",
    ),
    TableFormat("vtc", "req_time", "prompt_len", "output_len", "adapter_dir", "Ying1123/VTC-artifact", "Apache-2.0"),
    TableFormat(
        "measured",
        "queued_s",
        "input_toks",
        "output_toks",
        "run",
        "casys-kaist/LLMServingSim, requests measured on vLLM",
        "MIT",
    ),
    TableFormat(
        "arxiv",
        None,
        "num_prefill_tokens",
        "num_decode_tokens",
        None,
        "microsoft/vidur, arXiv summarisation lengths",
        "MIT",
    ),
)


def load_table(path: Path, header: str, lines: Iterator[str]) -> Trace:
    """A CSV whose first line was read. Raises `TraceError`."""
    columns = column_names(header)
    for form in TABLES:
        if {form.prompt, form.output} <= set(columns) and (form.arrival is None or form.arrival in columns):
            break
    else:
        known = "; ".join(f"{form.name}: {form.prompt},{form.output}" for form in TABLES)
        raise TraceError(str(path), 1, None, f"no known format has the columns {','.join(columns)} (known: {known})")
    tenant_column = form.tenant if form.tenant in columns else None
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    tenants: list[str] = []
    for line, row in table_rows(path, header, lines):
        if form.arrival is not None:
            arrivals.append(cell(path, line, form.arrival, row[form.arrival], instant_s))
        prompts.append(cell(path, line, form.prompt, row[form.prompt], count))
        outputs.append(cell(path, line, form.output, row[form.output], count))
        if tenant_column is not None:
            tenants.append(row[tenant_column])
    return make_trace(path, form.name, arrivals if form.arrival else None, prompts, outputs, tenants or None)
