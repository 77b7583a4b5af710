"""What each kind of server can do, and what it calls the model it serves.

Features are those of `api.routes`. A server with an OpenAPI description says by itself which of them it has; the tables
are for the others, and for what a description leaves open.
"""

from collections.abc import Collection, Mapping

from .api.openai_fields import LLAMA_TOKENIZE, TGI, TOKENIZE
from .api.routes import ROUTES

_OPENAI = frozenset({"chat", "completions", "responses", "embeddings"})
_AUDIO = frozenset({"speech", "transcriptions", "translations"})

FEATURES: Mapping[str, frozenset[str]] = {
    "tailgate-backend": frozenset({"chat", "completions", "detokenize"}),
    "vllm": _OPENAI
    | {"rerank", "score", "transcriptions", "translations", "pooling", "classify", "render", "detokenize"}
    | {"messages", "count-tokens"},
    "sglang": _OPENAI | {"rerank", "score", "classify", "detokenize", "messages", "count-tokens"},
    "llama.cpp": _OPENAI | {"rerank", "messages", "count-tokens", LLAMA_TOKENIZE, "detokenize"},
    "tgi": frozenset({"chat", "completions", TGI}),
    "openai": _OPENAI | _AUDIO | {"rerank"},
}
"""By kind. vLLM's `TOKENIZE` isn't among them: it counts only where it was seen to work."""

DESCRIBES_ITSELF = frozenset({"vllm", "sglang"})
"""Kinds whose OpenAPI description lists all they serve."""

TGI_MODEL = "tgi"
"""What TGI calls the model it serves, in the OpenAI routes; any other name is an adapter there."""

ALL_FEATURES = frozenset(route.feature for route in ROUTES)

_BY_PATH = {
    route.upstream_path or route.path: route.feature for route in ROUTES if route.feature not in (TGI, TOKENIZE)
}


def features_of(kind: str, described_paths: Collection[str] | None) -> frozenset[str]:
    """What a server of this kind can do. `described_paths`: those of its OpenAPI description; None without one."""
    usual = FEATURES.get(kind, FEATURES["openai"])
    described = frozenset(_BY_PATH[path] for path in described_paths or () if path in _BY_PATH)
    if not described:
        return usual
    return described if kind in DESCRIBES_ITSELF else usual | described
