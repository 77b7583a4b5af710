"""What the clients of the soak do: connections with their requests, all of it drawn from a seed beforehand."""

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from .replica import MODELS

MAX_BODY_BYTES = 1 << 20
"""The gateway's limit in the soak."""
_ROUTES = (
    ("/v1/chat/completions", 60),
    ("/v1/completions", 20),
    ("/v1/embeddings", 8),
    ("/detokenize", 6),
    ("/v1/messages/count_tokens", 6),
)
_STREAMING = frozenset({"/v1/chat/completions", "/v1/completions"})
_PATHS = [path for path, _ in _ROUTES]
_PATH_WEIGHTS = [weight for _, weight in _ROUTES]

STEADY = ("plain", "pipelined", "slow-sender", "slow-reader", "old", "expecting")
"""Kinds of visits whose client stays until everything is answered."""
LEAVING = ("leaves-sending", "leaves-waiting", "leaves-streaming", "half-closes", "stalls", "leaves-pipelined")
REFUSED = ("garbage", "slow-head", "too-far-ahead")
"""Kinds that are refused before anything of them is a request (too-far-ahead: the last one)."""
_KINDS = (*STEADY, *LEAVING, *REFUSED)
_WEIGHTS = (520, 80, 40, 30, 40, 30, 50, 90, 80, 30, 4, 20, 60, 6, 4)
# What a client of a steady visit gets wrong, of a thousand requests; closing ones end their connection.
_WRONG = (
    ("", 930),
    ("json", 15),
    ("model", 15),
    ("messages", 10),
    ("key", 12),
    ("method", 6),
    ("large", 5),
    ("large-chunked", 3),
    ("chunks", 3),
    ("unsent", 1),
)
_WRONGS = [wrong for wrong, _ in _WRONG]
_WRONG_WEIGHTS = [weight for _, weight in _WRONG]
CLOSING = frozenset({"large", "large-chunked", "chunks", "unsent"})

_HOST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
GARBAGE: tuple[tuple[bytes, str], ...] = (
    (b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03", "bad-http"),
    (_HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "bad-http"),
    (_HOST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "bad-http"),
    (_HOST + b"Content-Length : 5\r\n\r\nhello", "bad-http"),
    (_HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "bad-http"),
    (_HOST + b"X: b\0c\r\n\r\n", "bad-http"),
    (b"GET / HTTP/1.1\nHost: a\n\n", "bad-http"),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", "bad-http"),
    (b"GET / HTTP/1.1\r\n\r\n", "bad-http"),
    (_HOST + b"X: " + b"x" * 40_000 + b"\r\n\r\n", "head-too-large"),
    (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", "head-too-large"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `tenant` is "" where the gateway never learns it, `wrong` "" where it is as it should be."""

    number: int
    tenant: str
    path: str
    streams: bool
    wish: str = ""
    wrong: str = ""
    upload: str = "whole"
    num_words: int = 20
    model: str = MODELS[0]

    def body(self) -> bytes:
        """As it is before any coding."""
        if self.wrong == "json":
            return b'{"model": '
        text = "word " * self.num_words
        fields: dict[str, object] = {"model": "nobody" if self.wrong == "model" else self.model}
        if self.streams:
            fields["stream"] = True
        if self.path == "/v1/completions":
            fields |= {"prompt": 7 if self.wrong == "messages" else text, "max_tokens": 16}
        elif self.path == "/v1/embeddings":
            fields["input"] = 7 if self.wrong == "messages" else text
        elif self.path == "/detokenize":
            fields["tokens"] = [1, 2, 3]
        else:
            fields |= {"messages": 7 if self.wrong == "messages" else [{"role": "user", "content": text}]}
            fields["max_tokens"] = 16
        return json.dumps(fields).encode()

    def head(self, key: str, length: int | None, *, version: str = "1.1", expects: bool = False) -> bytes:
        """`length` None: chunked."""
        lines = [f"{'GET' if self.wrong == 'method' else 'POST'} {self.path} HTTP/{version}", "host: gateway"]
        lines += [f"authorization: Bearer {key}", "content-type: application/json"]
        lines.append(f"x-soak: {self.number}" + (f" {self.wish}" if self.wish else ""))
        lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
        if expects:
            lines.append("expect: 100-continue")
        if self.upload == "packed":
            lines.append("content-encoding: gzip")
        return "\r\n".join([*lines, "", ""]).encode()

    def pieces(self, key: str, *, version: str = "1.1") -> list[bytes]:
        """The whole request: head, and the body in one piece or several."""
        if self.wrong == "large":
            return [self.head(key, MAX_BODY_BYTES + 1, version=version), b"x" * 100_000]
        if self.wrong == "large-chunked":
            chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
            return [self.head(key, None), *([chunk] * (MAX_BODY_BYTES // 0x10000 + 1))]
        if self.wrong == "chunks":
            return [self.head(key, None), b"5\r\nhelloworld\r\n0\r\n\r\n"]
        body = gzip.compress(self.body(), 1) if self.upload == "packed" else self.body()
        if self.wrong == "unsent":
            return [self.head(key, len(body) + 10), body]
        if self.upload == "chunked":
            middle = len(body) // 2
            chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:middle], body[middle:])]
            return [self.head(key, None), *chunks, b"0\r\n\r\n"]
        return [self.head(key, len(body), version=version), body]


@dataclass(frozen=True, slots=True)
class Visit:
    """A connection. `delay_s` and `num_bytes` say when a client leaves, `resets` how; `garbage` indexes `GARBAGE`."""

    kind: str
    requests: tuple[Request, ...] = field(default=())
    delay_s: float = 0.0
    num_bytes: int = 0
    resets: bool = False
    garbage: int = 0


def visits(seed: str, tenants: tuple[str, ...], *, leaving: str, scattered: str) -> Iterator[Visit]:
    """Without end. Steady visits are of `tenants`, those that leave of `leaving`, and `scattered` leaves with requests
    unanswered of which it can't know whether their turn came."""
    rng = random.Random(f"{seed}/visits")
    numbers = itertools.count(1)

    def request(tenant: str, *, may_be_wrong: bool = True, **fields: object) -> Request:
        path = rng.choices(_PATHS, _PATH_WEIGHTS)[0]
        wrong = rng.choices(_WRONGS, _WRONG_WEIGHTS)[0] if may_be_wrong else ""
        has_messages = path not in ("/detokenize", "/v1/messages/count_tokens")
        if wrong == "messages" and not has_messages:
            wrong = "json"
        drawn: dict[str, object] = {
            # The method is looked at before the key.
            "tenant": "" if wrong in ("key", "method") else tenant,
            "path": path,
            "streams": path in _STREAMING and rng.random() < 0.6,
            "wrong": wrong,
            "upload": rng.choices(("whole", "chunked", "packed"), (80, 15, 5))[0],
            "num_words": rng.choices((5, 50, 400, 20_000), (40, 40, 18, 2))[0],
            "model": rng.choices(MODELS, (85, 15))[0],
        }
        return Request(number=next(numbers), **(drawn | fields))  # type: ignore[arg-type]

    while True:
        kind = rng.choices(_KINDS, _WEIGHTS)[0]
        tenant = leaving if kind in LEAVING else rng.choice(tenants)
        sent: list[Request] = []
        if kind == "plain":
            sent = [request(tenant) for _ in range(rng.randint(1, 8))]
        elif kind in ("pipelined", "leaves-pipelined"):
            tenant = scattered if kind == "leaves-pipelined" else tenant
            count = rng.randint(2, 6)
            sent = [request(tenant, may_be_wrong=False, upload="whole", num_words=20) for _ in range(count)]
        elif kind == "too-far-ahead":
            sent = [request(tenant, may_be_wrong=False, upload="whole", num_words=5) for _ in range(20)]
        elif kind == "slow-reader":
            sent = [request(tenant, may_be_wrong=False, path=_PATHS[0], wish="big", upload="whole")]
        elif kind == "stalls":
            sent = [request(tenant, may_be_wrong=False, path=_PATHS[0], streams=True, wish="huge", upload="whole")]
        elif kind == "leaves-streaming":
            sent = [request(tenant, may_be_wrong=False, path=_PATHS[0], streams=True)]
        elif kind not in REFUSED:
            sent = [request(tenant, may_be_wrong=False, upload="whole")]
        yield Visit(
            kind,
            tuple(sent),
            delay_s=rng.random() ** 3 * 0.5,
            num_bytes=int(rng.random() ** 2 * 2000),
            resets=rng.random() < 0.5,
            garbage=rng.randrange(len(GARBAGE)),
        )
