"""API keys: what one may do, how it is recognised, and where in a request it is found.

A key is 256 random bits, so it can't be guessed, and its hash needn't be slow: scrypt and its like protect secrets that
people choose, and here they would only let anybody burn the gateway's processors with wrong keys, each to be tried
against every salt. BLAKE2b, keyed with a random salt of the file, takes a microsecond and makes the hashes of one file
useless for another. A key is found by the beginning of its hash, which no client can choose, and then compared over the
whole of it in constant time.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from policies.limits import LimitSpec
from policies.types import DECLARABLE_LANES, Lane

from .errors import Forbidden, Headers, Unauthorized

# For every request: see `policies.types`.
_INTERACTIVE: Final = Lane.INTERACTIVE
_BACKGROUND: Final = Lane.BACKGROUND

PREFIX = "tg-"
"""What made keys begin with, so that scanners for leaked secrets find them."""
SECRET_BYTES = 32
DIGEST_BYTES = 32
SALT_BYTES = 32
TAG_BYTES = 8

NO_LIMITS = LimitSpec()
_BEARER = b"bearer "


@dataclass(frozen=True, slots=True)
class Key:
    """What the holder of a key may do. None: no restriction.

    `key_id` and `tenant` are names from the key file, safe to show; None and "" while no keys are configured.
    `priority_ceiling`: higher goes first. `sees_cached_tokens` is for whoever may learn from them what others sent.
    """

    key_id: str | None
    tenant: str
    digest: bytes = field(default=b"", repr=False)
    models: frozenset[str] | None = None
    lanes: frozenset[Lane] | None = None
    priority_ceiling: int | None = None
    limits: LimitSpec = NO_LIMITS
    has_diagnostics: bool = False
    sees_cached_tokens: bool = False
    is_admin: bool = False

    def check_model(self, asked: str | None, model: str) -> None:
        """Raises Forbidden. `asked` is what the request named (an alias, or nothing), `model` what that means."""
        if self.models is not None and model not in self.models and asked not in self.models:
            allowed = ", ".join(f"`{name}`" for name in sorted(self.models)) or "none"
            raise Forbidden(
                f"This API key may not use the model `{(asked or model)[:200]}`. Allowed: {allowed}.",
                param="model",
                code="model_not_allowed",
            )

    @property
    def limits_tokens(self) -> bool:
        """Whether how many tokens a request has decides if it is let in, so that no estimate will do."""
        return self.limits.tokens_per_min is not None or self.limits.max_in_flight_tokens is not None

    def may_use(self, model: str) -> bool:
        """Whether a model, or an alias, is one that the key may name."""
        return self.models is None or model in self.models

    def declared_lane(self, named: Lane | None, priority: int) -> Lane | None:
        """The lane to ask for, from what the request named and its priority (higher goes first).

        A priority over the ceiling is lowered to it. None leaves the lane to the token budget, which only a key that
        may use `interactive` does; others ask for the best lane they may use. Raises Forbidden for a lane that was
        named and isn't allowed.
        """
        if self.priority_ceiling is not None:
            priority = min(priority, self.priority_ceiling)
        lanes = self.lanes
        if named is not None:
            if lanes is not None and named not in lanes:
                allowed = ", ".join(lane.value for lane in DECLARABLE_LANES if lane in lanes)
                raise Forbidden(
                    f"This API key may not ask for the lane {named.value}. Allowed: {allowed}.",
                    param="x-tailgate-lane",
                    code="lane_not_allowed",
                )
            return named
        wanted = None if priority == 0 else _INTERACTIVE if priority > 0 else _BACKGROUND
        if lanes is None or wanted in lanes or (wanted is None and _INTERACTIVE in lanes):
            return wanted
        return next(lane for lane in DECLARABLE_LANES if lane in lanes)


EVERYBODY = Key(None, "", has_diagnostics=True, sees_cached_tokens=True, is_admin=True)
"""Whoever calls while no keys are configured."""


def new_secret() -> str:
    """A new key: shown once, and kept nowhere."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def new_id() -> str:
    """A name for a key, which has nothing of the key in it."""
    return "k" + secrets.token_hex(4)


def new_salt() -> bytes:
    return secrets.token_bytes(SALT_BYTES)


def digest_of(secret: bytes, salt: bytes) -> bytes:
    """What is stored of a key."""
    return hashlib.blake2b(secret, digest_size=DIGEST_BYTES, key=salt).digest()


class KeyTable:
    """The keys of one version of a file. Never changes."""

    def __init__(self, keys: Iterable[Key], salt: bytes) -> None:
        self.keys = tuple(keys)
        self._salt = salt
        self._by_tag = {key.digest[:TAG_BYTES]: key for key in self.keys}
        # What an unknown key is compared with, so that it takes the same steps.
        self._nobody = Key(None, "", digest=secrets.token_bytes(DIGEST_BYTES))

    def find(self, secret: bytes) -> Key | None:
        """The key that this is, None if it is none."""
        digest = hashlib.blake2b(secret, digest_size=DIGEST_BYTES, key=self._salt).digest()
        key = self._by_tag.get(digest[:TAG_BYTES], self._nobody)
        return key if hmac.compare_digest(key.digest, digest) else None


def presented(headers: Headers) -> bytes:
    """The key in `Authorization: Bearer` or `x-api-key`; a bearer goes first. Names are in lower case.

    Raises Unauthorized when there is none, or a header that must be one is there several times with different values.
    """
    bearer = api_key = None
    for name, value in headers:
        if name == b"authorization":
            if value[:7].lower() == _BEARER:
                bearer = _single(bearer, value[7:].strip())
        elif name == b"x-api-key":
            api_key = _single(api_key, value.strip())
    key = bearer or api_key
    if not key:
        raise Unauthorized('An API key is needed, as "Authorization: Bearer KEY" or "x-api-key: KEY".')
    return key


def _single(before: bytes | None, value: bytes) -> bytes:
    if before is not None and not hmac.compare_digest(before, value):
        raise Unauthorized("More than one API key was sent.")
    return value
