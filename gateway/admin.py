"""Everything that isn't a request to a model: health, readiness, metrics, models, where a request's time went."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from policies.adaptive import Choice
from policies.replica_view import ReplicaView

from .admin_access import AdminAccess
from .api import routes
from .attribution import Record
from .errors import GatewayError
from .keys import Key
from .openapi import with_inference_routes
from .replica import Replica
from .served_models import ServedModel

INDEX = """\
tailgate: a scheduling gateway in front of LLM servers.

POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings,
     /v1/audio/speech, /v1/audio/transcriptions, /v1/audio/translations    OpenAI's API
POST /v1/messages, /v1/messages/count_tokens                               Anthropic's
POST /generate, /generate_stream, /; GET /info                             Text Generation Inference's
POST /v1/rerank, /v1/score, /pooling, /classify, /tokenize, /detokenize    what vLLM and others add
GET  /v1/models                              what is served
GET  /v1/requests/{x-tailgate-request-id}/timing   where a request's time went
GET  /metrics                                Prometheus
GET  /v1/policy                              which policy decides, and what it does at present
GET  /healthz, /readyz                       this process lives; it can serve
GET  /openapi.json                           all of these routes in detail
"""


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = with_inference_routes(super().openapi())
        return self.openapi_schema


class Pool(Protocol):
    def all(self) -> list[Replica]: ...
    def models(self) -> Mapping[str, ServedModel]: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...


class Ring(Protocol):
    def get(self, request_id: str) -> Record | None: ...


class Page(Protocol):
    def render(self) -> tuple[bytes, str]: ...


class Deciding(Protocol):
    @property
    def policy_name(self) -> str: ...
    @property
    def choice(self) -> Choice | None: ...


class Draining(Protocol):
    @property
    def is_draining(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class AdminState:
    """What the routes look at; they change nothing. `started_at` is in Unix seconds."""

    pool: Pool
    metrics: Page
    ring: Ring
    draining: Draining
    access: AdminAccess
    view: Callable[[str], ReplicaView | None]
    """What scheduling knows of a replica."""
    policy: Deciding
    started_at: int


def build_admin_app(state: AdminState) -> FastAPI:
    """The application for every path that isn't hot; other paths get a 404 in OpenAI's shape."""
    app = _App(
        title="tailgate",
        description="A scheduling gateway in front of LLM servers.",
        version=version("tailgate"),
        # These pages load their scripts from the internet.
        docs_url=None,
        redoc_url=None,
    )

    @app.get("/", summary="What is here", response_class=Response)
    async def index() -> Response:
        return Response(INDEX, media_type="text/plain")

    @app.get("/healthz", summary="Whether the process lives", response_class=Response)
    async def healthz() -> Response:
        return _json({"status": "ok"})

    @app.get("/readyz", summary="Whether requests can be served", response_class=Response)
    async def readyz(request: Request) -> Response:
        """503 while the gateway drains, and while no replica is available. Replicas are shown to whoever may know."""
        replicas = state.pool.all()
        shown = {}
        if state.access.has_diagnostics(request.scope):
            shown["replicas"] = {
                replica.replica_id: _shown(replica, state.view(replica.replica_id)) for replica in replicas
            }
        if state.draining.is_draining:
            return _json({"status": "draining", **shown}, 503)
        if not any(replica.is_available for replica in replicas):
            return _json({"status": "no replica is available", **shown}, 503)
        return _json({"status": "ready", **shown})

    @app.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        """For the operator, as configured."""
        state.access.check_operator(request.scope)
        content, content_type = state.metrics.render()
        return Response(content, headers={"content-type": content_type})

    @app.get("/v1/policy", summary="Which policy decides, and what it does at present", response_class=Response)
    async def policy(request: Request) -> Response:
        """For the operator, as configured. `choice` is null where the ordering is always the same."""
        state.access.check_operator(request.scope)
        choice = state.policy.choice
        shown = None if choice is None else {"name": choice.name, "why": choice.why}
        return _json({"policy": state.policy.policy_name, "choice": shown})

    @app.get("/v1/models", summary="Models of all replicas, and aliases", response_class=Response)
    async def models(request: Request) -> Response:
        """Those that the caller's key may use."""
        cards = _models(state, state.access.caller(request.scope))
        return _json({"object": "list", "data": list(cards.values())})

    @app.get("/v1/models/{name:path}", summary="One model", response_class=Response)
    async def model(name: str, request: Request) -> Response:
        found = _models(state, state.access.caller(request.scope)).get(name)
        if found is None:
            return _error(404, f"The model `{name[:200]}` does not exist.", "model_not_found", param="model")
        return _json(found)

    @app.get("/v1/requests/{request_id}/timing", summary="Where a request's time went", response_class=Response)
    async def timing(request_id: str, request: Request) -> Response:
        """By the id in the response header x-tailgate-request-id; only the latest finished requests are remembered.

        With the key that made the request, or as the operator.
        """
        caller = state.access.caller(request.scope)
        record = state.ring.get(request_id)
        if record is None or not (caller.is_admin or caller.key_id == record.key_id):
            return _error(404, "No finished request with this id is remembered.", "request_not_found")
        return _json(record.to_dict() if caller.is_admin else record.shown())

    @app.exception_handler(GatewayError)
    async def denied(_: Request, error: GatewayError) -> Response:
        answer = Response(error.body(), error.status)
        answer.raw_headers.extend(error.headers())
        return answer

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        codes = {404: "not_found", 405: "method_not_allowed"}
        answer = _error(error.status_code, str(error.detail), codes.get(error.status_code, "invalid_request"))
        answer.headers.update(error.headers or {})
        hot = routes.BY_PATH.get(request.url.path)
        if error.status_code == 405 and hot is not None and not state.access.is_inside(request.scope):
            answer.headers["allow"] += f", {hot.method}"
        return answer

    return app


def _shown(replica: Replica, view: ReplicaView | None) -> dict[str, Any]:
    shown = {"available": replica.is_available, "kind": replica.kind, "models": sorted(replica.models)}
    if replica.slice_block_tokens is not None:
        shown["long_prompts"] = f"in slices of whole blocks of {replica.slice_block_tokens} tokens"
    elif replica.whole_because is not None:
        shown["long_prompts"] = f"whole: {replica.whole_because}"
    if view is not None:
        shown["in_flight_tokens"] = view.in_flight_tokens
        shown["in_flight_tokens_cap"] = view.cap_tokens
        shown["in_flight_tokens_cap_reason"] = view.cap_reason
        shown["kv_capacity_tokens"] = view.kv_capacity_tokens
    return shown


def _models(state: AdminState, caller: Key) -> dict[str, dict[str, Any]]:
    """Those that the caller may name: models, then aliases of them, in OpenAI's shape with vLLM's fields."""
    served = state.pool.models()
    cards = {name: _card(name, model, state.started_at) for name, model in served.items()}
    for alias, name in state.pool.aliases.items():
        if name in served:
            cards[alias] = {**_card(alias, served[name], state.started_at), "root": name}
    return {name: card for name, card in cards.items() if caller.may_use(name)}


def _card(name: str, model: ServedModel, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "tailgate",
        "root": model.root or model.name,
        "parent": model.parent,
        "max_model_len": model.max_model_len,
    }


def _json(data: object, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")


def _error(status: int, message: str, code: str, *, param: str | None = None) -> Response:
    """OpenAI's error shape."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return _json({"error": error}, status)
