"""Trace loaders: every format on a few inline lines, and errors that name the place."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from loadtests.errors import TraceError
from loadtests.traces import Trace, attribution, load_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n"
    "2023-11-16 18:17:05,10,1\n"
)


def _load(tmp_path: Path, text: str, name: str = "trace.csv") -> Trace:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_trace(path)


def test_azure_dates_become_seconds_from_the_first_request(tmp_path: Path) -> None:
    """Seven decimals, or none, are read; the first request is at 0."""
    trace = _load(tmp_path, AZURE)
    assert trace.format == "azure"
    assert trace.arrival_s is not None
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.052, 1.02004], atol=1e-6)
    assert trace.prompt_tokens.tolist() == [4808, 3180, 10]
    assert trace.output_tokens.tolist() == [10, 8, 1]
    assert trace.tenant is None
    assert len(trace) == 3


def test_azure_2024_dates_with_a_zone_are_read(tmp_path: Path) -> None:
    """The 2024 files end their instants with an offset."""
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10 00:00:00+00:00,3,4\n"
    )
    trace = _load(tmp_path, text)
    assert trace.arrival_s is not None
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.00993], atol=1e-6)


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    """A gzip file under any name gives the same trace as the plain one."""
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress(AZURE.encode()))
    assert load_trace(path).prompt_tokens.tolist() == [4808, 3180, 10]


def test_mooncake_keeps_its_blocks_and_reads_milliseconds(tmp_path: Path) -> None:
    """Timestamps are milliseconds; hash ids come along; blank lines are skipped."""
    text = (
        '{"timestamp":500,"input_length":6758,"output_length":500,"hash_ids":[0,1]}\n\n'
        '{"timestamp":3500,"input_length":1,"output_length":2,"hash_ids":[0]}\n'
    )
    trace = _load(tmp_path, text, "trace.jsonl")
    assert trace.format == "mooncake"
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 3.0]
    assert trace.block_ids == ((0, 1), (0,))


def test_qwen_bailian_reads_seconds_blocks_of_16_and_types(tmp_path: Path) -> None:
    """Stamps are seconds; the type of call stands for the tenant."""
    row = (
        '{"chat_id":1,"parent_chat_id":-1,"timestamp":%s,"input_length":20,"output_length":5,"type":"%s","turn":1,'
        '"hash_ids":[7,8]}'
    )
    trace = _load(tmp_path, "\n".join([row % (61.114, "text"), row % (61.314, "search")]), "trace.jsonl")
    assert (trace.format, trace.block_tokens, trace.block_ids) == ("qwen-bailian", 16, ((7, 8), (7, 8)))
    assert trace.arrival_s is not None
    assert trace.tenant is not None
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.2])
    assert trace.tenant.tolist() == [0, 1]


def test_a_result_of_aiperf_is_a_trace_of_what_succeeded(tmp_path: Path) -> None:
    """Nanoseconds; failed and cancelled requests are left out."""
    row = (
        '{"metadata":{"request_start_ns":%d,"was_cancelled":%s},"metrics":{"input_sequence_length":{"value":%d,'
        '"unit":"tokens"},"output_sequence_length":{"value":9,"unit":"tokens"}},"error":%s}'
    )
    rows = [(5 * 10**8, "false", 50, "null"), (6 * 10**8, "true", 1, "null"), (7 * 10**8, "false", 1, '{"code":500}')]
    trace = _load(tmp_path, "\n".join(row % values for values in [(10**9, "false", 60, "null"), *rows]), "x.jsonl")
    assert trace.format == "aiperf"
    assert trace.arrival_s is not None
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0.0, 0.5], [50, 60])


def test_a_detailed_result_of_vllms_benchmark_is_a_trace(tmp_path: Path) -> None:
    """On one line or indented; requests without an output failed."""
    result = {"duration": 1.0, "input_lens": [10, 20, 30], "output_lens": [1, 0, 3], "start_times": [7.5, 7.0, 7.25]}
    for text in (json.dumps(result), json.dumps(result, indent=2)):
        trace = _load(tmp_path, text, "result.json")
        assert trace.format == "vllm"
        assert trace.arrival_s is not None
        assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0.0, 0.25], [30, 10])


def test_measured_requests_are_a_trace_too(tmp_path: Path) -> None:
    """Lengths and the instants of queueing; the run stands for the tenant."""
    text = "run,request_id,input_toks,output_toks,queued_s,first_token_s,last_token_s\na,x,5,6,0.5,1,2\n"
    assert _load(tmp_path, text).format == "measured"


def test_rows_out_of_order_are_sorted_with_everything_that_belongs_to_them(tmp_path: Path) -> None:
    """Arrival order decides; tenants and lengths move along; tenants are numbered by first appearance."""
    text = "req_time,adapter_dir,prompt_len,output_len\n2.5,b,3,4\n0.5,a,1,2\n"
    trace = _load(tmp_path, text)
    assert trace.format == "vtc"
    assert trace.arrival_s is not None
    assert trace.tenant is not None
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.tenant.tolist()) == ([0, 2], [1, 3], [1, 0])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Timestamp,Session ID,Request tokens,Response tokens\n19440110.0,1722ac82,906,446\n", "burstgpt"),
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,1,2,3,x\n", "burstgpt"),
        ("timestamp,client_id,input_tokens,output_tokens,reason_ratio\n0.000,65,23011,1798,0.73\n", "servegen"),
    ],
)
def test_other_formats_are_told_by_their_columns(tmp_path: Path, text: str, name: str) -> None:
    """Extra columns don't matter, and a missing session column only loses the tenant."""
    trace = _load(tmp_path, text)
    assert trace.format == name
    assert attribution(name)[1]


def test_lengths_without_arrivals_have_no_instants(tmp_path: Path) -> None:
    """The arXiv table has lengths only."""
    assert _load(tmp_path, "num_prefill_tokens,num_decode_tokens\n3772,54\n").arrival_s is None


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, None, "empty"),
        ("a,b\n1,2\n", 1, None, "no known format"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", 1, None, "no requests"),
        (AZURE + "2023-11-16 18:17:06,x,1\n", 5, "ContextTokens", "'x'"),
        (AZURE + "2023-11-16 18:17:06,1,-3\n", 5, "GeneratedTokens", "from 0"),
        (AZURE + "2023-11-16 18:17:06,1,nan\n", 5, "GeneratedTokens", "finite"),
        (AZURE + "yesterday,1,3\n", 5, "TIMESTAMP", "yesterday"),
        (AZURE + "2023-11-16 18:17:06,1\n", 5, None, "2 columns"),
        ('{"timestamp":1,"input_length":2,"output_length":3}\nnonsense\n', 2, None, "not JSON"),
        ('{"timestamp":1,"input_length":2,"output_length":3}\n[]\n', 2, None, "object"),
        ('{"timestamp":1,"output_length":3}\n', 1, "input_length", "not a number"),
        ('{"timestamp":1,"input_length":2,"output_length":3,"hash_ids":7}\n', 1, "hash_ids", "list"),
        ('{"other":1}\n', 1, None, "no known format"),
        ('{"metadata":{"request_start_ns":1},"metrics":{}}\n', 1, "metrics.input_sequence_length.value", "None"),
        ('{"input_lens":[1]}\n', 1, "output_lens", "save-detailed"),
        ('{"input_lens":[1],"output_lens":[1,2],"start_times":[1]}\n', 1, "start_times", "different"),
        ('{"input_lens":["x"],"output_lens":[1],"start_times":[1]}\n', 1, "input_lens[0]", "'x'"),
        ('{\n"input_lens": [1,\n', 3, None, "not JSON"),
    ],
)
def test_errors_name_file_line_and_column(
    tmp_path: Path, text: str, line: int | None, column: str | None, words: str
) -> None:
    """Whatever is wrong, the message says where."""
    with pytest.raises(TraceError) as caught:
        _load(tmp_path, text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert "trace.csv" in str(caught.value)
    assert words in str(caught.value)


def test_a_broken_or_missing_file_is_an_error_of_the_same_kind(tmp_path: Path) -> None:
    """A truncated gzip, bytes that are no text, and no file at all are reported, not raised as they come."""
    whole = gzip.compress(AZURE.encode() * 50)
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    for name in ("cut", "binary", "missing"):
        with pytest.raises(TraceError, match=f"{name}: cannot be read"):
            load_trace(tmp_path / name)
