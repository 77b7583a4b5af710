"""Questions a gateway asks a replica, each bounded in time and size. None of them raises for what a replica does."""

import asyncio
import os
import socket
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

import httpx
import orjson

MAX_ANSWER_BYTES = 4 * 1024 * 1024

# What /v1/models says in `owned_by`.
OWNERS = {"tailgate": "tailgate-backend", "vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}


class Health(StrEnum):
    GREEN = "green"
    DOWN = "down"
    """It said so, or nobody listens."""
    SLOW = "slow"
    """No answer in time: it may only be busy."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A line of /v1/models."""

    max_model_len: int | None = None
    """Longest prompt + output, tokens; None where the replica doesn't say."""
    owned_by: str | None = None
    root: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class TgiInfo:
    """What a TGI server's /info says."""

    model: str
    max_model_len: int | None
    """Longest prompt + output, tokens."""
    kv_capacity_tokens: int | None
    """Prompt + largest output that a batch may hold; not every version tells."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content: bytes

    def json(self) -> object:
        """None for what isn't JSON."""
        try:
            return orjson.loads(self.content)
        except orjson.JSONDecodeError:
            return None


class Prober:
    """Asks one replica. `url` is its base; `authorization` the header it wants, if any."""

    def __init__(self, http: httpx.AsyncClient, url: str, authorization: str | None, timeout_s: float) -> None:
        self._http = http
        self._url = url
        self._timeout_s = timeout_s
        self._trouble = ""
        """Why the last question without an answer had none."""
        # Not packed: what arrives is then what is counted against the bound.
        self._headers = {"accept-encoding": "identity"}
        if authorization is not None:
            self._headers["authorization"] = authorization

    async def ask(self, path: str, *, json: object = None) -> Answer | None:
        """GET, or POST of `json`. None: no answer, a broken or packed one, or one over `MAX_ANSWER_BYTES`.

        Raises TimeoutError when the whole answer took longer than the timeout.
        """
        method, content, headers = "GET", None, self._headers
        if json is not None:
            method, content, headers = "POST", orjson.dumps(json), {**headers, "content-type": "application/json"}
        try:
            async with asyncio.timeout(self._timeout_s):
                request = self._http.stream(
                    method,
                    self._url + path,
                    content=content,
                    headers=headers,
                    timeout=self._timeout_s,
                    follow_redirects=False,  # a replica may not send the gateway elsewhere
                )
                async with request as response:
                    try:
                        return await self._received(response, path)
                    finally:
                        await response.aclose()
                        response.stream = httpx.ByteStream(b"")  # the one it had refers back to it
        except httpx.TimeoutException as error:
            raise TimeoutError from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._trouble = _in_words(error)
            return None

    async def _received(self, response: httpx.Response, path: str) -> Answer | None:
        received = bytearray()
        if response.headers.get("content-encoding", "identity") != "identity":
            self._trouble = f"a packed answer at {path}"
            return None
        async for piece in response.aiter_raw():
            received += piece
            if len(received) > MAX_ANSWER_BYTES:
                self._trouble = f"an answer over {MAX_ANSWER_BYTES} bytes at {path}"
                return None
        return Answer(response.status_code, bytes(received))

    async def health(self) -> tuple[Health, str]:
        """/health, or /v1/models of a server that has no /health (plain OpenAI ones); and why it isn't green."""
        path = "/health"
        try:
            answer = await self.ask(path)
            if answer is not None and answer.status in (404, 405, 501):
                path = "/v1/models"
                answer = await self.ask(path)
        except TimeoutError:
            return Health.SLOW, f"no answer from {path} within {self._timeout_s:g} s"
        if answer is None:
            return Health.DOWN, self._trouble
        if not 200 <= answer.status < 300:
            return Health.DOWN, f"status {answer.status} at {path}"
        return Health.GREEN, ""

    async def models(self) -> Mapping[str, ModelCard] | None:
        """Names and cards of /v1/models; None where there is no such answer."""
        data = await self._object("/v1/models")
        listed = data.get("data")
        if not isinstance(listed, list):
            return None
        cards = {}
        for item in listed:
            if isinstance(item, dict) and isinstance(name := item.get("id"), str) and name:
                meta = item.get("meta")  # llama.cpp
                length = item.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
                cards[name] = ModelCard(
                    max_model_len=_count(length),
                    owned_by=_text(item.get("owned_by")),
                    root=_text(item.get("root")),
                    parent=_text(item.get("parent")),
                )
        return cards

    async def tgi_info(self) -> TgiInfo | None:
        """None for servers of other kinds."""
        info = await self._object("/info")
        if "max_concurrent_requests" in info and (name := _text(info.get("model_id"))):
            return TgiInfo(name, _count(info.get("max_total_tokens")), _count(info.get("max_batch_total_tokens")))
        return None

    async def metrics_page(self) -> str | None:
        try:
            answer = await self.ask("/metrics")
        except TimeoutError:
            return None
        return None if answer is None or answer.status != 200 else answer.content.decode("utf-8", "replace")

    async def kind(self, cards: Mapping[str, ModelCard], engine: str | None) -> str:
        """Which server this is: by who owns its models, its version page, its own pages, its metrics' names."""
        for card in cards.values():
            for owner, kind in OWNERS.items():
                if card.owned_by is not None and card.owned_by.startswith(owner):
                    return kind
        version = await self._object("/version")
        if "tailgate" in str(version.get("engine", version.get("version", ""))):
            return "tailgate-backend"
        if engine is not None:
            return engine
        if await self.tgi_info() is not None:
            return "tgi"
        if "default_generation_settings" in await self._object("/props"):
            return "llama.cpp"
        return "vllm" if "version" in version else "openai"

    async def described_paths(self) -> Collection[str] | None:
        """The paths in the server's OpenAPI description; None where it has none."""
        paths = (await self._object("/openapi.json")).get("paths")
        return frozenset(paths) if isinstance(paths, dict) else None

    async def has_tokenize(self, model: str) -> bool:
        """Whether POST /tokenize answers in vLLM's shape."""
        try:
            answer = await self.ask("/tokenize", json={"model": model, "prompt": "one two"})
        except TimeoutError:
            return False
        data = answer.json() if answer is not None and answer.status == 200 else None
        return isinstance(data, dict) and _count(data.get("count")) is not None

    async def _object(self, path: str) -> Mapping[str, object]:
        """A JSON object at `path`; {} for every other answer."""
        try:
            answer = await self.ask(path)
        except TimeoutError:
            return {}
        data = answer.json() if answer is not None and answer.status == 200 else None
        return data if isinstance(data, dict) else {}


def _in_words(error: BaseException) -> str:
    """What the system says beneath what the HTTP library made of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "no such host"
        if isinstance(cause, ssl.SSLError):
            return f"TLS: {getattr(cause, 'verify_message', None) or cause.reason}"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
        cause = cause.__cause__ or cause.__context__
    return str(error)[:200] or type(error).__name__


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
