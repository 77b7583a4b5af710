"""The engine's HTTP application: routes and their wiring."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .api.answers import ChatAnswer, CompletionAnswer
from .api.errors import ApiError, bad_request
from .api.fields import DetokenizeBody, TokenizeBody
from .api.generate import GenerateRoute, as_api_error
from .api.http import ClientLeftError, parse_object, read_body
from .api.logprobs import TokenTexts
from .api.prepare import Preparer, validate
from .api.prompts import Tokenizer, check_ids
from .bridge import Bridge
from .engine import Engine, EngineStoppedError
from .metrics import Metrics

MAX_BODY_BYTES = 16 << 20
_NUM_TOKENIZER_THREADS = 2

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served, under which names; the first one is the one answers carry by default."""

    names: Sequence[str]
    root: str
    tokenizer: Tokenizer
    created_s: int
    """Unix time."""


def build_app(
    engine: Engine, metrics: Metrics, model: ServedModel, *, max_body_bytes: int = MAX_BODY_BYTES
) -> Starlette:
    """The application. Its lifespan starts the engine's thread and stops it.

    `app.state.stop_answers()`, on the event loop, gives up on the answers that aren't complete.
    """
    bridge = Bridge(engine)
    pool = ThreadPoolExecutor(_NUM_TOKENIZER_THREADS, thread_name_prefix="tokenizer")
    preparer = Preparer(model.tokenizer, pool, model_names=model.names, max_model_len=engine.max_model_len)
    token_texts = TokenTexts(model.tokenizer)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        bridge.attach()
        engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(engine.stop)
            pool.shutdown(wait=False, cancel_futures=True)

    async def read_fields(request: Request) -> dict[str, Any]:
        return parse_object(await read_body(request.headers, request.receive, max_body_bytes))

    async def tokenize(request: Request) -> Response:
        body = validate(TokenizeBody, await read_fields(request))
        preparer.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("give either prompt or messages", "prompt")
        if body.messages is not None:
            tokens = await preparer.prompts.chat_tokens(body.messages, add_generation_prompt=body.add_generation_prompt)
        else:
            tokens = await preparer.prompts.text_tokens(
                body.prompt or "", add_special_tokens=body.add_special_tokens is not False
            )
        return _json({"count": len(tokens), "max_model_len": engine.max_model_len, "tokens": tokens})

    async def detokenize(request: Request) -> Response:
        body = validate(DetokenizeBody, await read_fields(request))
        preparer.check_model(body.model)
        if len(body.tokens) > engine.max_model_len:
            raise bad_request(f"tokens: at most {engine.max_model_len} at once", "tokens")
        tokens = check_ids(body.tokens, model.tokenizer.vocab_size, "tokens")
        text = await asyncio.get_running_loop().run_in_executor(
            pool, lambda: model.tokenizer.decode(tokens, skip_special_tokens=False)
        )
        return _json({"prompt": text})

    async def models(_: Request) -> Response:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": model.created_s,
                "owned_by": "tailgate",
                "root": model.root,
                "parent": None,
                "max_model_len": engine.max_model_len,
            }
            for name in model.names
        ]
        return _json({"object": "list", "data": cards})

    async def health(_: Request) -> Response:
        return Response(status_code=200 if engine.is_alive else 503)

    async def render_metrics(_: Request) -> Response:
        content, media_type = metrics.render()
        return Response(content, media_type=media_type)

    async def show_version(_: Request) -> Response:
        return _json({"version": version("tailgate")})

    def generate(prepare: Any, answer: Any) -> GenerateRoute:
        return GenerateRoute(prepare, answer, bridge, token_texts, max_body_bytes=max_body_bytes)

    def guarded(handler: Handler) -> Handler:
        return _guarded(handler, bridge)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", generate(preparer.chat, ChatAnswer), methods=["POST"]),
            Route("/v1/completions", generate(preparer.completions, CompletionAnswer), methods=["POST"]),
            Route("/v1/models", guarded(models), methods=["GET"]),
            Route("/tokenize", guarded(tokenize), methods=["POST"]),
            Route("/detokenize", guarded(detokenize), methods=["POST"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", render_metrics, methods=["GET"]),
            Route("/version", show_version, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _on_http_exception, Exception: _on_exception},
        lifespan=lifespan,
    )
    app.state.stop_answers = bridge.stop
    return app


def _guarded(handler: Handler, bridge: Bridge) -> Handler:
    """Answer `ApiError` in its own words, and a 503 when the server ends first."""

    @wraps(handler)
    async def guarded(request: Request) -> Response:
        try:
            async with bridge.until_stopped():
                return await handler(request)
        except (ApiError, EngineStoppedError) as error:
            return _error(as_api_error(error))
        except ClientLeftError:
            return Response(status_code=499)

    return guarded


async def _on_http_exception(_: Request, error: Exception) -> Response:
    """404 and 405 of the router."""
    if not isinstance(error, HTTPException):
        raise error
    return _error(ApiError(error.status_code, error.detail))


async def _on_exception(_: Request, __: Exception) -> Response:
    """A bug: logged by the server, not told to the client."""
    return _error(ApiError(500, "internal error"))


def _error(error: ApiError) -> Response:
    return _json(error.to_dict(), error.status)


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
