"""The stream scanner sees what a reader of whole streams would see, however the stream is cut."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.sse import MAX_EVENT_BYTES, StreamScanner, has_content
from gateway.sse_comment import CommentInserter
from gateway.usage import Usage, read_usage, usage_of_answer
from tests.fuzz.effort import EFFORT
from tests.support.event_stream import events_of
from tests.support.fake_replica import DONE, delta, event, finish, usage_event


@dataclass
class Facts:
    num_content_chunks: int = 0
    has_ended: bool = False
    has_error: bool = False
    usage: Usage | None = None


def reference(stream: bytes) -> Facts:
    """The slow, plain reading of a whole stream: the standard's algorithm, and JSON for every event."""
    facts = Facts()
    for name, data, _ in events_of(stream):
        facts.has_error |= name == "error"
        if data.strip(" \t\n\r\v\f") == "[DONE]":
            facts.has_ended = True
            continue
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            continue
        if isinstance(chunk, dict):
            facts.has_error |= bool(chunk.get("error"))
            facts.usage = read_usage(chunk) or facts.usage
            facts.num_content_chunks += has_content(chunk)
    return facts


def scanned(pieces: list[bytes]) -> Facts:
    scanner = StreamScanner()
    for piece in pieces:
        scanner.feed(piece)
    assert scanner.has_content == (scanner.num_content_chunks > 0)
    return Facts(scanner.num_content_chunks, scanner.has_ended, scanner.has_error, scanner.usage)


TRICKY = st.sampled_from(
    [
        "",
        "a",
        "\n",
        "data: [DONE]",
        '"usage"',
        '"error":',
        "{}",
        '""',
        '"finish_reason":null',
        "é€😀",
        "\\",
        '\\"',
        ": x",
    ]
)
CHUNKS = st.one_of(
    TRICKY.map(delta),
    TRICKY.map(lambda text: delta(text, usage=None)),
    TRICKY.map(lambda text: event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})),
    TRICKY.map(lambda text: event({"choices": [{"delta": {"content": None, "tool_calls": [text]}}]})),
    st.just(event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})),
    st.just(event({"choices": [{"delta": {}, "finish_reason": None}]})),
    st.sampled_from(
        [finish(), usage_event(3, 4), DONE, b"data:[DONE]\n\n", b": comment\n\n", b"\n", b"data\n\n", b"id: 7\n\n"]
    ),
    st.sampled_from([event({"error": {"message": "x"}}), event({"error": None}), b"event: error\ndata: oops\n\n"]),
    st.sampled_from(
        [b"event: error\n\n", b'data: {"choices":\ndata: []}\n\n', b"data: not json\n\n", b"data: [1]\n\n"]
    ),
    st.just(event({"choices": [None, {"delta": 3}, 7], "usage": 5})),
    st.just(event({"choices": 3})),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(CHUNKS, max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_every_split_point_gives_the_same_facts(chunks: list[bytes], line_end: bytes) -> None:
    """Two pieces, for all places to cut; and whole, and byte by byte."""
    stream = b"".join(chunks).replace(b"\n", line_end)
    wanted = reference(stream)
    assert scanned([stream]) == wanted
    assert scanned([stream[i : i + 1] for i in range(len(stream))]) == wanted
    for cut in range(len(stream)):
        assert scanned([stream[:cut], stream[cut:]]) == wanted, cut


@settings(max_examples=300, deadline=None)
@given(st.lists(CHUNKS, max_size=8), st.data())
def test_many_pieces_give_the_same_facts(chunks: list[bytes], data: st.DataObject) -> None:
    """Any number of pieces, empty ones included; one event a piece is the usual form."""
    stream = b"".join(chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert scanned(pieces) == reference(stream)
    assert scanned(chunks) == reference(stream)


CONTENT = b'{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}'
VALUES = st.sampled_from(
    [
        b"",
        b" ",
        b"[DONE]",
        b" [DONE] ",
        b"error",
        b"message",
        b"7",
        b"\0",
        b"\xef\xbb\xbf",
        b"\xff",
        b":",
        CONTENT,
        CONTENT.replace(b'"a"', b'""'),
        CONTENT.replace(b'"a"', b'"\xf0\x9f\x98"'),
        CONTENT.replace(b'"a"', b'"\\ud83d"'),
        CONTENT.replace(b'"a"', b'"a","logprob":-Infinity'),
        b'{"choices":',
        b'[{"text":"a"}]}',
        b'{"error":{"message":"x"}}',
        b'{"usage":{"prompt_tokens":3,"completion_tokens":4},"choices":[]}',
        b"[" * 2000,
    ]
)
FIELDS = st.sampled_from(
    [b"data", b"data ", b" data", b"DATA", b"event", b"id", b"retry", b"other", b"", b"\xef\xbb\xbfdata"]
)
LINES = st.one_of(
    st.just(b""),
    st.tuples(st.just(b"data"), st.sampled_from([b":", b": "]), VALUES).map(b"".join),
    st.tuples(FIELDS, st.sampled_from([b":", b": ", b":  ", b""]), VALUES).map(b"".join),
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@settings(max_examples=400 * EFFORT, deadline=None)
@given(
    st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf", b"\xef\xbb"]),
    st.lists(st.tuples(LINES, ENDS).map(b"".join), max_size=10),
    st.sampled_from([b"", b"data: [DONE]", b"\r"]),
    st.data(),
)
def test_any_lines_are_read_as_the_standard_says(
    mark: bytes, lines: list[bytes], unfinished: bytes, data: st.DataObject
) -> None:
    """Marks, fields of every kind and none, values that are no JSON or no UTF-8, line ends mixed, cut anywhere."""
    stream = mark + b"".join(lines) + unfinished
    wanted = reference(stream)
    assert scanned([stream]) == wanted
    assert scanned([stream[i : i + 1] for i in range(len(stream))]) == wanted
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    assert scanned([stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]) == wanted


@settings(max_examples=30 * EFFORT, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, MAX_EVENT_BYTES // 3), st.sampled_from([b"data: ", b": ", b"id:"])), max_size=2),
    st.sampled_from([b"\n\n", b"\r\r", b"\r\n\r\n"]),
    st.integers(1, 70_000),
)
def test_huge_lines_hide_nothing_of_their_neighbours(
    sizes: list[tuple[int, bytes]], end: bytes, num_bytes: int
) -> None:
    """Below the bound they are read as all others, in pieces of any size."""
    huge = [field + b"x" * size + end for size, field in sizes]
    stream = delta("a") + b"".join(huge) + delta("b") + DONE
    assert scanned([stream[at : at + num_bytes] for at in range(0, len(stream), num_bytes)]) == reference(stream)


def test_an_unfinished_event_says_nothing() -> None:
    """An end marker without the blank line behind it isn't one yet."""
    assert scanned([DONE[:-1]]) == Facts()


def test_an_endless_event_is_not_held() -> None:
    """Past the bound nothing of it is kept, it counts as content, and the events behind it are seen again."""
    scanner = StreamScanner()
    piece = b"x" * 65536
    scanner.feed(b"data: ")
    for _ in range(2 * MAX_EVENT_BYTES // len(piece)):
        scanner.feed(piece)
    assert sum(map(len, scanner._line)) + sum(map(len, scanner._data)) <= MAX_EVENT_BYTES
    scanner.feed(b"\n\n" + delta("a") + DONE)
    assert (scanner.num_content_chunks, scanner.has_ended) == (2, True)


def test_an_event_of_endlessly_many_lines_is_not_held() -> None:
    """The same where every single line is short."""
    scanner = StreamScanner()
    lines = b"data: xxxxxxxxxx\n" * 4096
    for _ in range(MAX_EVENT_BYTES // len(lines) + 2):
        scanner.feed(lines)
    assert sum(map(len, scanner._data)) == 0
    scanner.feed(b"\n" + DONE)
    assert (scanner.num_content_chunks, scanner.has_ended) == (1, True)


def test_usage_with_measured_times() -> None:
    """Counts, cached tokens and vLLM's metrics; members of the wrong type count as unsaid."""
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    metrics = {"queue_time_ms": 12.5, "time_to_first_token_ms": 100}
    assert read_usage({"usage": usage, "metrics": metrics}) == Usage(9, 2, 8, 0.0125, 0.1)
    odd = {"prompt_tokens": "9", "completion_tokens": True, "prompt_tokens_details": 3}
    assert read_usage({"usage": odd, "metrics": {"queue_time_ms": -1}}) == Usage()
    assert read_usage({"usage": None}) is None
    assert read_usage([1]) is None


@pytest.mark.parametrize("size", [10, 1 << 19])
def test_usage_of_a_whole_answer(size: int) -> None:
    """Found in small answers and at the end of large ones."""
    usage = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 2}
    body = json.dumps({"choices": [{"text": "x" * size}], "usage": usage, "id": 1}).encode()
    assert usage_of_answer(body) == Usage(5, 2, 4)
    assert usage_of_answer(b'{"a": "' + b"x" * size + b'"}') is None
    assert usage_of_answer(b'{"usage": {' + b"x" * size) is None


@given(st.lists(CHUNKS.filter(lambda chunk: b"[DONE]" not in chunk), max_size=5), st.data())
@settings(max_examples=200, deadline=None)
def test_the_comment_goes_before_the_end_marker(chunks: list[bytes], data: st.DataObject) -> None:
    """Once, between events, with every other byte as it was, however the stream is cut."""
    line_end = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    before, marker = b"".join(chunks).replace(b"\n", line_end), DONE.replace(b"\n", line_end)
    stream = before + marker + b": after\n\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    inserter, out, num_comments = CommentInserter(), b"", 0
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        sent, rest = inserter.feed(stream[a:b])
        out += sent
        if rest is not None:
            num_comments += 1
            out += b"<>" + rest
    assert num_comments == 1
    assert out + inserter.flush() == before + b"<>" + stream[len(before) :]


def test_without_an_end_marker_nothing_is_put_in_or_lost() -> None:
    """A stream that ends without one, or with one huge event, comes out as it went in."""
    inserter = CommentInserter()
    stream = delta("a") + b"data: [DO"
    assert inserter.feed(stream)[0] + inserter.flush() == stream
    inserter = CommentInserter()
    pieces = [b"data: " + b"x" * 70_000, b"\n\n", DONE]
    assert [inserter.feed(piece) for piece in pieces] == [(piece, None) for piece in pieces]
