"""Cross-origin requests of browsers, for the origins that were configured; without any, browsers refuse them.

Credentials in the sense of CORS (cookies) play no part: an API key is a header like any other.
"""

from collections.abc import Collection

from .disconnect import Message, Send
from .errors import Headers

PREFIX = b"access-control-"
# "*" stands for any header but authorization; the usual ones are named for whoever doesn't know that.
_ALLOWED = (
    b"authorization, content-type, accept, x-api-key, anthropic-version, anthropic-beta, openai-organization, "
    b"openai-project, x-request-id, x-tailgate-deadline-ms, x-tailgate-lane, x-tailgate-timing, *"
)


class Cors:
    """`origins` as browsers write them, or "*"; `max_age_s` is how long they may remember an answer."""

    def __init__(self, origins: Collection[str], max_age_s: int) -> None:
        self._is_open = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._max_age = b"%d" % max_age_s

    def is_preflight(self, scope: Message) -> bool:
        """Whether a browser asks if it may ask."""
        if scope["method"] != "OPTIONS":
            return False
        names = {name for name, _ in scope["headers"]}
        return b"origin" in names and b"access-control-request-method" in names

    async def answer(self, scope: Message, send: Send) -> None:
        """To a preflight: 204 with what is allowed, or 403."""
        granted = self._granted(scope["headers"])
        headers = [*granted, (b"content-length", b"0")]
        if granted:
            headers += [
                (b"access-control-allow-methods", b"GET, HEAD, POST, OPTIONS"),
                (b"access-control-allow-headers", _ALLOWED),
                (b"access-control-max-age", self._max_age),
            ]
        await send({"type": "http.response.start", "status": 204 if granted else 403, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def wrap(self, scope: Message, send: Send) -> Send:
        """A `send` whose answers, errors too, a browser shows to pages of an allowed origin."""
        granted = self._granted(scope["headers"])
        if granted:
            granted.append((b"access-control-expose-headers", b"*"))
        if not self._is_open:
            granted.append((b"vary", b"origin"))

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *granted]
            await send(message)

        return send_on

    def _granted(self, headers: Headers) -> Headers:
        if self._is_open:
            return [(b"access-control-allow-origin", b"*")]
        origins = [value for name, value in headers if name == b"origin"]
        # What is sent back is the configured text, which is the same.
        allowed = len(origins) == 1 and origins[0] in self._origins
        return [(b"access-control-allow-origin", origins[0])] if allowed else []
