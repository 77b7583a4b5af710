"""The load client: OpenAI chat requests over HTTP, with the instants of raw events.

Chunks are stamped as they come off the socket, before anything is parsed. Arrivals of an open loop never wait for
answers; the client's own lateness is measured, not hidden.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import aiohttp

from .answer import Answer
from .errors import TargetError
from .target import base_url, unreachable
from .workload import PlannedRequest

_HEADERS_OF_INTEREST = ("server-timing", "retry-after", "x-request-id")
Messages = list[dict[str, str]]


class LoadClient:
    """Sends requests to one OpenAI server. Use as an async context manager; it owns its connections.

    Raises `TargetError` for a URL that is none.
    """

    def __init__(self, url: str, model: str, *, timeout_s: float = 300.0, api_key: str | None = None) -> None:
        self.url = base_url(url)
        self.model = model
        self._timeout_s = timeout_s
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "LoadClient":
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            # No limit of its own: a client that queues would hide the server's waiting.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=10.0),
            headers=self._headers,
            trace_configs=[trace],
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open session. Raises RuntimeError outside the context."""
        if self._session is None:
            raise RuntimeError("LoadClient is used outside its context")
        return self._session

    async def post_json(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and parsed JSON (None where the answer is not JSON). Raises `TargetError` without an answer."""
        status, answer = await self._whole("POST", path, json=body)
        return status, _json_or_none(answer)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises `TargetError` without an answer."""
        return await self._whole("GET", path)

    async def _whole(self, method: str, path: str, **content: Any) -> tuple[int, bytes]:
        try:
            async with self.session.request(method, self.url + path, **content) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(self.url, error) from error

    async def first_model(self) -> str:
        """The first name of /v1/models. Raises `TargetError` where there is none."""
        status, body = await self.get("/v1/models")
        listed = _json_or_none(body)
        models = listed.get("data") if isinstance(listed, dict) else None
        if status != 200 or not models:
            raise TargetError(f"{self.url}/v1/models answered {status} and lists no model")
        return str(models[0]["id"])

    async def send(
        self,
        request: PlannedRequest,
        messages: Messages,
        scheduled_s: float | None = None,
        *,
        leave_after_s: float | None = None,
        fields: Mapping[str, Any] = MappingProxyType({}),
    ) -> Answer:
        """Sends one streamed chat request with its output length pinned; never raises for what the server does.

        `fields` are further ones of the body. With `leave_after_s` the client hangs up that many seconds after sending,
        whatever has come by then.
        """
        body = json.dumps(
            {
                "model": self.model,
                "messages": messages,
                "max_tokens": request.output_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                **fields,
            }
        ).encode()
        headers = {"content-type": "application/json"}
        if request.declare_lane is not None:
            headers["x-tailgate-lane"] = request.declare_lane
        sent_s = time.monotonic()
        answer = Answer(
            index=request.index,
            lane=request.lane,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            scheduled_s=sent_s if scheduled_s is None else scheduled_s,
            sent_s=sent_s,
        )
        try:
            async with asyncio.timeout(leave_after_s):
                await self._exchange(body, headers, answer)
        except TimeoutError:
            # aiohttp's own timeout is a TimeoutError too; which one it was is told by the clock.
            has_left = leave_after_s is not None and time.monotonic() - sent_s >= leave_after_s
            answer.error = "left" if has_left else "timeout"
        except aiohttp.ClientConnectorError:
            answer.error = "connect"
        except aiohttp.ClientPayloadError:
            answer.error = "cut"
        except (aiohttp.ClientError, ConnectionError):
            answer.error = "reset"
        except asyncio.CancelledError:
            answer.error = "run-ended"
        if answer.end_s is None:
            answer.end_s = time.monotonic()
        return answer

    async def _exchange(self, body: bytes, headers: dict[str, str], answer: Answer) -> None:
        post = self.session.post(
            self.url + "/v1/chat/completions", data=body, headers=headers, trace_request_ctx={"answer": answer}
        )
        async with post as response:
            answer.head_s = time.monotonic()
            answer.status = response.status
            answer.headers = {
                name.lower(): value
                for name, value in response.headers.items()
                if name.lower().startswith("x-tailgate-") or name.lower() in _HEADERS_OF_INTEREST
            }
            if response.status != 200:
                await response.read()
                answer.error = f"http-{response.status}"
                return
            events = _Events(answer)
            async for data in response.content.iter_any():
                events.feed(data, time.monotonic())
            answer.end_s = time.monotonic()
            if answer.error is None and not events.is_done:
                answer.error = "cut"

    async def open_loop(
        self,
        requests: Sequence[PlannedRequest],
        make_messages: Callable[[PlannedRequest], Messages],
        *,
        limit_s: float,
        on_end: Callable[[Answer], None] | None = None,
        leave_after_s: Callable[[PlannedRequest], float | None] | None = None,
    ) -> list[Answer]:
        """Sends each request at its `arrival_s` after now, whatever the answers do; answers in order of arrival.

        Ends when all have ended, or `limit_s` after the start: what still runs then has the error "run-ended".
        """
        messages = [make_messages(request) for request in requests]
        start_s = time.monotonic()
        tasks: list[asyncio.Task[Answer]] = []

        def note(task: asyncio.Task[Answer]) -> None:
            if on_end is not None and not task.cancelled():
                on_end(task.result())

        try:
            for request, body in zip(requests, messages, strict=True):
                scheduled_s = start_s + request.arrival_s
                await asyncio.sleep(max(0.0, scheduled_s - time.monotonic()))
                leave_s = None if leave_after_s is None else leave_after_s(request)
                task = asyncio.create_task(self.send(request, body, scheduled_s, leave_after_s=leave_s))
                task.add_done_callback(note)
                tasks.append(task)
            await asyncio.wait(tasks, timeout=max(0.0, start_s + limit_s - time.monotonic()))
        finally:
            for task in tasks:
                task.cancel()
        return list(await asyncio.gather(*tasks))

    async def closed_loop(
        self,
        requests: Iterable[PlannedRequest],
        make_messages: Callable[[PlannedRequest], Messages],
        *,
        num_clients: int,
        duration_s: float | None = None,
    ) -> list[Answer]:
        """`num_clients` callers that each send their next request when the last one ended.

        Ends when the requests run out, or `duration_s` after the start; what runs at that moment is cut and kept,
        with the error "run-ended".
        """
        source = iter(requests)
        answers: list[Answer] = []

        async def caller() -> None:
            for request in source:
                answer = await self.send(request, make_messages(request))
                answers.append(answer)
                if answer.error == "run-ended":
                    return

        tasks = [asyncio.create_task(caller()) for _ in range(num_clients)]
        try:
            await asyncio.wait(tasks, timeout=duration_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return answers


class _Events:
    """Server-sent events of a chat stream, fed as bytes; notes chunks with text on the answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""
        self.is_done = False

    def feed(self, data: bytes, now_s: float) -> None:
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._data(line[5:].strip(), now_s)

    def _data(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        chunk = _json_or_none(data)
        if not isinstance(chunk, dict):
            self._answer.error = "protocol"
            return
        if "error" in chunk:
            self._answer.error = "stream-error"
            return
        if isinstance(chunk.get("usage"), dict):
            self._answer.usage = chunk["usage"]
        for choice in chunk.get("choices") or ():
            text = (choice.get("delta") or {}).get("content") or choice.get("text")
            if text:
                self._answer.chunk_s.append(now_s)
            if choice.get("finish_reason"):
                self._answer.finish_reason = choice["finish_reason"]


async def _note_reuse(_session: aiohttp.ClientSession, context: Any, _params: Any) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx["answer"].is_reused_connection = True


def _json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
