"""The routes to replicas: a row for each, and nothing else can be reached.

Paths upstream are constants, so whatever a client writes, a replica's other routes (its sleep, its adapters, its own
metrics) are out of reach. A path that isn't here byte for byte is unknown, however it is encoded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ..disconnect import Message
from ..errors import Headers
from ..sse import StreamScanner
from . import error_shapes, model_name
from .anthropic import read_messages
from .audio import read_audio
from .error_shapes import ErrorShape
from .fields import RequestFields, read_chat, read_completions
from .openai_fields import TGI, TOKENIZE, read_embeddings, read_model, read_responses, read_texts, read_tokenize
from .streams import GenerateScanner, MessagesScanner, ResponsesScanner
from .tgi import read_generate, read_generate_stream, read_nothing, read_root

Reader = Callable[[bytes, Headers, int], RequestFields]


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    `name` is the kind of call in metrics, in the log and for what is learned of output lengths. `feature` is what a
    replica must be able to do (see `replica_kinds`). `read` gets body, headers and the deepest nesting allowed, and
    raises BadRequest. `upstream_path` is the same path where it isn't given. `rename` puts another model name into a
    body; TGI's own bodies have none. Light routes cost no generation: they hold no slot, wait for nothing and are
    not counted.
    """

    name: str
    feature: str
    path: str
    read: Reader
    method: str = "POST"
    upstream_path: str = ""
    errors: ErrorShape = error_shapes.OPENAI
    scanner: type[StreamScanner] = StreamScanner
    rename: Callable[[bytes, Headers, str], bytes] = model_name.in_json
    is_light: bool = False
    raw_path: bytes = field(init=False)
    request_start: bytes = field(init=False)
    """Method and target upstream."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw_path", self.path.encode())
        object.__setattr__(self, "request_start", f"{self.method} {self.upstream_path or self.path}".encode())


_typed = partial(Route, scanner=ResponsesScanner)
_anthropic = partial(Route, errors=error_shapes.ANTHROPIC, scanner=MessagesScanner)
_tgi = partial(Route, errors=error_shapes.TGI, scanner=GenerateScanner)

ROUTES = (
    Route("chat", "chat", "/v1/chat/completions", read_chat),
    Route("completions", "completions", "/v1/completions", read_completions),
    _typed("responses", "responses", "/v1/responses", read_responses),
    Route("embeddings", "embeddings", "/v1/embeddings", read_embeddings),
    Route("rerank", "rerank", "/v1/rerank", read_texts),
    Route("rerank", "rerank", "/rerank", read_texts, upstream_path="/v1/rerank"),
    Route("score", "score", "/v1/score", read_texts),
    Route("score", "score", "/score", read_texts, upstream_path="/v1/score"),
    Route("pooling", "pooling", "/pooling", read_embeddings),
    Route("classify", "classify", "/classify", read_embeddings),
    _typed("speech", "speech", "/v1/audio/speech", read_texts),
    _typed("transcriptions", "transcriptions", "/v1/audio/transcriptions", read_audio, rename=model_name.in_form),
    _typed("translations", "translations", "/v1/audio/translations", read_audio, rename=model_name.in_form),
    Route("render", "render", "/v1/chat/completions/render", read_model, is_light=True),
    Route("tokenize", TOKENIZE, "/tokenize", read_tokenize, is_light=True),
    Route("detokenize", "detokenize", "/detokenize", read_model, is_light=True),
    _anthropic("messages", "messages", "/v1/messages", read_messages),
    _anthropic("count-tokens", "count-tokens", "/v1/messages/count_tokens", read_model, is_light=True),
    _tgi("generate", TGI, "/generate", read_generate),
    _tgi("generate", TGI, "/generate_stream", read_generate_stream),
    _tgi("generate", TGI, "/", read_root),
    _tgi("info", TGI, "/info", read_nothing, method="GET", is_light=True),
)

BY_PATH = {route.path: route for route in ROUTES}
# These the gateway has itself, with other methods.
_SHARED_PATHS = frozenset({"/"})


def find(scope: Message) -> Route | None:
    """The route that a request asks for, with whatever method; None: it isn't one of these."""
    route = BY_PATH.get(scope["path"])
    if route is None or scope.get("raw_path", route.raw_path) != route.raw_path:
        return None
    return None if route.path in _SHARED_PATHS and scope["method"] != route.method else route
