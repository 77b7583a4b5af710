"""The server under test as its caller names it, and in words why it cannot be reached."""

import os
from urllib.parse import urlsplit

import aiohttp

from .errors import TargetError


def base_url(text: str) -> str:
    """Where routes are appended to: a final `/v1`, as clients have it in their settings, is taken off.

    Raises `TargetError` for what isn't an http URL.
    """
    url = text.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise TargetError(f"{text}: a server's URL must be http://HOST[:PORT] or https://HOST[:PORT]")
    return url


def unreachable(url: str, error: Exception) -> TargetError:
    """The error for a server that gave no answer, in plain words."""
    if isinstance(error, TimeoutError):
        why = "no answer in time"
    elif isinstance(error, aiohttp.ClientConnectorDNSError):
        why = "no such host"
    elif isinstance(error, OSError) and error.errno:
        why = os.strerror(error.errno).lower()
    else:
        why = str(error) or type(error).__name__
    return TargetError(f"{url} cannot be reached: {why}")
