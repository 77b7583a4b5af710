"""Passing a replica's answer on to the client, bytes as they come, and learning from it on the way.

The status is sent when the replica's is known, and never another one. The end of the answer is sent only if the
replica ended it: where it broke off, `ResponseBroken` makes the server cut the client's connection, so that nobody
takes a part for the whole. The slot goes back when the replica is done, before the last bytes go to the client.

While the client keeps up, each piece goes from the replica's socket to the client's in one call, and the task that
serves the request sleeps. It wakes when a send has to wait, and until that is over nothing more is read.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

import orjson

from policies.types import Outcome, Sample

from . import record_headers
from .api.openai import response_headers
from .attribution import Layer, Record
from .disconnect import FOLLOWS, LINES, Message
from .dispatcher import Place
from .eager import Pending, begin
from .engine_timing import EngineTiming, read_engine_timing
from .errors import GatewayError, Headers, ResponseBroken
from .heartbeat import Heartbeat
from .sending import Sending
from .sse import StreamScanner
from .sse_comment import CommentInserter
from .upstream import Exchange
from .upstream_errors import UpstreamError
from .usage import Usage

# For every request: see `policies.types`.
_PREFILL: Final = Layer.PREFILL
_RELAY: Final = Layer.RELAY
_SUCCESS: Final = Outcome.SUCCESS

# A send that takes longer waited for the client, and its time is the client's.
SLOW_SEND_S = 0.001
# Usage is read from whole answers up to this size.
MAX_KEPT_BYTES = 1 << 20


class Relay:
    """One answer on its way. `run` is called once, with the head of the replica's response.

    `has_started` says whether a status was sent, `usage` is what the replica said it counted (None: nothing yet).
    """

    __slots__ = (
        "_client",
        "_clock",
        "_dispatched_s",
        "_exchange",
        "_failure",
        "_first_s",
        "_headers",
        "_heartbeat",
        "_heartbeat_s",
        "_inserter",
        "_kept",
        "_kept_bytes",
        "_last_s",
        "_may_grow",
        "_place",
        "_record",
        "_route",
        "_scanner",
        "_send",
        "_timing",
        "_unsent",
        "_unsent_since_s",
        "_wants_timing",
        "_write",
        "has_started",
        "usage",
    )

    def __init__(
        self,
        exchange: Exchange,
        place: Place,
        sending: Sending,
        record: Record,
        clock: Callable[[], float],
        heartbeat_s: float | None = None,
    ) -> None:
        self._exchange = exchange
        self._place = place
        self._client = sending.client
        self._send = sending.send
        self._write = sending.write
        self._record = record
        self._clock = clock
        self._route = sending.route
        self._wants_timing = sending.head.wants_timing
        self._heartbeat_s = heartbeat_s
        self._heartbeat: Heartbeat | None = None
        self._may_grow = False  # whether it is a stream to which something of our own may be added
        self._dispatched_s = clock()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._scanner: StreamScanner | None = None
        self._inserter: CommentInserter | None = None
        self._kept: list[bytes] | None = None
        self._kept_bytes = 0
        self._headers: Headers = []
        self._timing: EngineTiming | None = None
        self._unsent: Pending[None] | None = None
        self._unsent_since_s = 0.0
        self._failure: Exception | None = None
        self.has_started = False
        self.usage: Usage | None = None

    def request_written(self) -> None:
        """The request is out: until the first token the time is the engine's, unmeasured until it says otherwise."""
        self._dispatched_s = self._clock()
        self._record.enter(_PREFILL, self._dispatched_s, "est")

    async def run(self, status: int, headers: Headers) -> None:
        """Send the answer on. Raises ResponseBroken when the replica doesn't finish it."""
        self._read_head(status, headers)
        self.has_started = True
        self._record.status = status
        passed = response_headers(headers)
        if withheld := self._record.withheld:
            passed = [header for header in passed if not header[0].startswith(withheld)]
        start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": passed,
            FOLLOWS: self._inserter is None and self._exchange.has_body,
        }
        if self._write is None:  # some other server
            start["headers"] = passed + record_headers.headers(self._record)
        else:
            start[LINES] = record_headers.head_lines(self._record)
        await self._send(start)
        if self._heartbeat_s is not None and self._may_grow:
            self._heartbeat = Heartbeat(self._send, self._heartbeat_s, self._may_beat)
        try:
            await self._pass_body(status)
        except UpstreamError as error:
            self._place.end_call(Outcome.DROPPED, self._sample())
            await self._break_off(error)
        except asyncio.CancelledError:
            if (stopped := self._client.stopped_by()) is None:
                raise
            await self._break_off(stopped)
        finally:
            if self._heartbeat is not None:
                self._heartbeat.close()
            self._count_output()

    def _is_between_events(self) -> bool:
        """Whether all that went out of a stream are whole events, and its end wasn't among them."""
        scanner = self._scanner
        return scanner is not None and scanner.is_between_events and not scanner.has_ended and self._unsent is None

    def _may_beat(self) -> bool:
        """Whether a comment may be put into the stream here."""
        return self._is_between_events() and (self._inserter is None or not self._inserter.is_holding)

    async def _break_off(self, error: GatewayError) -> NoReturn:
        """The answer can't be finished. A stream says so itself, where that wouldn't be taken for a part of it."""
        self._record.outcome, self._record.reason = "failed", error.reason
        is_told = self._is_between_events()
        if is_told:
            held = b"" if self._inserter is None else self._inserter.flush()
            event = self._route.errors.event(error)
            await self._send({"type": "http.response.body", "body": held + event, "more_body": True})
        raise ResponseBroken(error.message, is_told=is_told) from error

    def _read_head(self, status: int, headers: Headers) -> None:
        record, now_s = self._record, self._clock()
        first = dict(reversed(headers))
        content_type = first.get(b"content-type", b"").lower()
        coding = first.get(b"content-encoding")
        is_packed = coding is not None and coding.strip().lower() not in (b"", b"identity")
        is_stream = content_type.startswith(b"text/event-stream")
        if is_stream and not is_packed:
            self._scanner = self._route.scanner()
            self._may_grow = b"content-length" not in first
            if self._wants_timing and self._may_grow:
                self._inserter = CommentInserter()
        elif status == 200 and not is_packed and content_type.startswith(b"application/json"):
            self._kept, self._headers = [], headers
        self._timing = timing = read_engine_timing(headers) if b"server-timing" in first else None
        if timing is not None:
            # The engine sends the head with the first token (or with the whole answer): its own times split the span.
            record.enter(Layer.DECODE if is_stream else _RELAY, now_s)
            record.notes.pop(_PREFILL, None)
            record.cached_tokens = timing.cached_tokens
            record.reassign(_PREFILL, Layer.ENGINE_QUEUE, timing.queue_s)
            if timing.decode_s is not None:
                record.reassign(_PREFILL, Layer.DECODE, timing.decode_s)
            if not is_stream:
                record.upstream_ttft_s = timing.queue_s + timing.prefill_s
        elif not is_stream:
            record.enter(_RELAY, now_s)

    async def _pass_body(self, status: int) -> None:
        exchange = self._exchange
        while True:
            last = await exchange.pour(self._pass_on)
            if self._failure is not None:
                raise self._taken_failure()
            if self._unsent is not None:
                await self._send_rest(self._unsent)
            if exchange.is_at_end:
                break
        read_s = self._clock()
        if last:
            last = self._look_at(last, read_s)
        if self._inserter is not None:
            last += self._inserter.flush()
        self._ended(status)
        if self._heartbeat is not None:
            self._heartbeat.close()
        self._client.response_complete()
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
        self._note_first_sent()

    def _pass_on(self, piece: bytes) -> bool:
        """Takes a piece from the replica's connection; False when the client has to be waited for."""
        try:
            now_s = self._clock()
            piece = self._look_at(piece, now_s)
            if not piece:
                return True
            if self._write is not None and self._write(piece):
                unsent = None
            else:
                unsent = begin(self._send({"type": "http.response.body", "body": piece, "more_body": True}))
        except Exception as error:  # of ours: it isn't the connection's to see
            self._failure = error
            return False
        if self._heartbeat is not None:
            self._heartbeat.sent()
        if unsent is not None:
            self._unsent, self._unsent_since_s = unsent, now_s
            return False
        if self._record.ttft_s is None:
            self._note_first_sent()
        return True

    def _taken_failure(self) -> Exception:
        """For whoever raises it: held on, it would refer back to this by the frames it goes through."""
        failure, self._failure = self._failure, None
        assert failure is not None
        return failure

    def _look_at(self, piece: bytes, now_s: float) -> bytes:
        """Learn from a piece; what is to be sent for it."""
        scanner = self._scanner
        if scanner is not None:
            num_before = scanner.num_content_chunks
            scanner.feed(piece)
            if scanner.num_content_chunks != num_before:
                self._last_s = now_s
                if self._first_s is None:
                    self._begin_decode(now_s)
                self._place.progress(scanner.num_content_chunks)
        elif self._kept is not None:
            self._keep(piece)
        return piece if self._inserter is None else self._with_comment(self._inserter, piece)

    async def _send_rest(self, unsent: Pending[None]) -> None:
        """The client doesn't keep up: wait for it. The time is the client's."""
        await unsent
        self._unsent = None
        sent_s = self._clock()
        if sent_s - self._unsent_since_s > SLOW_SEND_S:
            layer = self._record.layer
            self._record.enter(_RELAY, self._unsent_since_s)
            self._record.enter(layer, sent_s)
        self._note_first_sent()

    def _note_first_sent(self) -> None:
        if self._first_s is not None and self._record.ttft_s is None:
            self._record.ttft_s = self._clock() - self._record.arrival_s

    def _begin_decode(self, now_s: float) -> None:
        """The first content came."""
        self._first_s = now_s
        self._record.upstream_ttft_s = now_s - self._dispatched_s
        self._record.enter(Layer.DECODE, now_s)
        self._place.first_token()

    def _keep(self, piece: bytes) -> None:
        assert self._kept is not None
        self._kept_bytes += len(piece)
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._kept = None
        else:
            self._kept.append(piece)

    def _with_comment(self, inserter: CommentInserter, piece: bytes) -> bytes:
        before, rest = inserter.feed(piece)
        if rest is None:
            return before
        self._learn_usage()
        self._record.enter(self._record.layer, self._clock())
        return b"%b: tailgate %b\n\n%b" % (before, orjson.dumps(self._record.shown()), rest)

    def _ended(self, status: int) -> None:
        """The replica is done: learn what it said, and give the slot and the connection back."""
        record, scanner = self._record, self._scanner
        if self._kept is not None:
            self.usage = self._route.scanner.usage_of_whole(self._headers, b"".join(self._kept))
        self._learn_usage()
        outcome = _SUCCESS
        if status >= 500 or status == 429 or (scanner is not None and scanner.has_error):
            outcome, record.outcome = Outcome.DROPPED, "failed"
        elif status >= 400:
            outcome, record.outcome = Outcome.IGNORED, "bad-request"
        self._place.end_call(outcome, self._sample())
        self._exchange.close()
        record.enter(_RELAY, self._clock())

    def _learn_usage(self) -> None:
        record, scanner = self._record, self._scanner
        if scanner is not None:
            self.usage = scanner.usage
        usage = self.usage
        if usage is not None:
            record.output_tokens = usage.output_tokens
            record.replica_prompt_tokens = usage.prompt_tokens
            if usage.cached_tokens is not None:
                record.cached_tokens = usage.cached_tokens
            if self._timing is None and usage.queue_s is not None and _PREFILL in record.notes:
                del record.notes[_PREFILL]
                record.reassign(_PREFILL, Layer.ENGINE_QUEUE, usage.queue_s)
                if scanner is None and usage.prefill_s is not None:
                    record.reassign(_PREFILL, Layer.DECODE, record.layers[_PREFILL] - usage.prefill_s)
        self._count_output()
        if self._first_s is not None and record.output_tokens is not None and record.output_tokens > 1:
            record.tpot_s = (self._last_s - self._first_s) / (record.output_tokens - 1)

    def _count_output(self) -> None:
        """Where the replica didn't say: an event for each token, as far as the answer came."""
        if self._record.output_tokens is None and self._scanner is not None:
            self._record.output_tokens = self._scanner.num_content_chunks

    def _sample(self) -> Sample:
        record, usage = self._record, self.usage
        return Sample(
            None if usage is None else usage.prompt_tokens,
            record.cached_tokens,
            record.output_tokens,
            record.upstream_ttft_s,
            record.tpot_s,
        )
