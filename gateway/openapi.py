"""The routes to replicas in the gateway's OpenAPI description: from their table, since FastAPI never sees them.

Bodies are the replica's to define. What is described is what the gateway reads of them, its own headers and its errors.
"""

from typing import Any

from policies.types import DECLARABLE_LANES

from .api import error_shapes, model_name
from .api.routes import ROUTES, Route

# Shape, whose it is, and what an error's object has.
_APIS = (
    (error_shapes.OPENAI, "OpenAI and vLLM", ["error"]),
    (error_shapes.ANTHROPIC, "Anthropic", ["type", "error"]),
    (error_shapes.TGI, "Text Generation Inference", ["error", "error_type"]),
)
_MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
_EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "NAME", "messages": _MESSAGES, "max_tokens": 16},
    "/v1/completions": {"model": "NAME", "prompt": "The capital of France is", "max_tokens": 4},
    "/v1/responses": {"model": "NAME", "input": "What is the capital of France?"},
    "/v1/embeddings": {"model": "NAME", "input": "Paris"},
    "/v1/messages": {"model": "NAME", "messages": _MESSAGES, "max_tokens": 16},
    "/generate": {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}},
}
# Members without which nothing is sent on.
_REQUIRED = {
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt",),
    "/v1/messages": ("messages",),
    "/generate": ("inputs",),
    "/generate_stream": ("inputs",),
    "/": ("inputs",),
}
_NEW_HEADERS = {
    "x-tailgate-request-id": "Under this name the request's timing is kept: GET /v1/requests/{request_id}/timing.",
    "server-timing": "Where the time went until the answer began: layers and milliseconds.",
    "x-tailgate-lane": "The lane it went through.",
}


def with_inference_routes(schema: dict[str, Any]) -> dict[str, Any]:
    """Adds them to the description of the gateway's own routes, in place, and what those say when something is wrong.

    FastAPI describes errors of its own, which nothing here ever answers with.
    """
    schema.get("components", {}).get("schemas", {}).clear()
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = _default("An error.", ["error"])
    schema["paths"]["/readyz"]["get"]["responses"]["503"] = {"description": "It can't serve now."}
    for route in ROUTES:
        schema["paths"].setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return schema


def _operation(route: Route) -> dict[str, Any]:
    api, error_members = next((name, members) for shape, name, members in _APIS if shape is route.errors)
    operation: dict[str, Any] = {
        "tags": [api],
        "operationId": f"{route.method} {route.path}",
        "summary": route.name,
        "description": "Goes to a replica that serves it, bodies and streams as they are; 404 where none does.",
        "responses": {
            "200": {
                "description": "The replica's answer.",
                "headers": {
                    name: {"description": text, "schema": {"type": "string"}} for name, text in _NEW_HEADERS.items()
                },
            },
            "default": _default("An error of the gateway, in this API's shape, or the replica's own.", error_members),
        },
    }
    if not route.is_light:
        operation["parameters"] = [
            _header(
                "x-tailgate-lane",
                "Which lane to go through, within limits.",
                {"type": "string", "enum": [lane.value for lane in DECLARABLE_LANES]},
            ),
            _header(
                "x-tailgate-deadline-ms",
                "Milliseconds from arrival by which the first token is wanted; still waiting then, it is answered 504.",
                {"type": "integer", "minimum": 1},
            ),
            _header(
                "x-tailgate-timing",
                "A stream's timing, as a comment right before its end.",
                {"type": "string", "enum": ["stream"]},
            ),
        ]
    if route.method == "POST":
        media_type = "multipart/form-data" if route.rename is model_name.in_form else "application/json"
        required = {"required": list(_REQUIRED[route.path])} if route.path in _REQUIRED else {}
        content: dict[str, Any] = {"schema": {"type": "object", **required}}
        if route.path in _EXAMPLES:
            content["example"] = _EXAMPLES[route.path]
        operation["requestBody"] = {"required": True, "content": {media_type: content}}
    return operation


def _header(name: str, about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": about, "schema": schema}


def _default(about: str, members: list[str]) -> dict[str, Any]:
    """A response with an error object that has these members."""
    return {
        "description": about,
        "content": {"application/json": {"schema": {"type": "object", "required": members}}},
    }
