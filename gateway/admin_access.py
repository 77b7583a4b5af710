"""Who may read what isn't a request: metrics and any request's timing are the operator's, one's own timing everyone's.

The operator is whoever reaches the listener that is for it, or has a key with `admin`, or both, as configured; while
there are neither keys nor such a listener, anybody.
"""

from collections.abc import Mapping
from typing import Any

from .errors import Forbidden, GatewayError, NotFound
from .key_ring import KeyRing
from .keys import EVERYBODY, Key

Scope = Mapping[str, Any]


class AdminAccess:
    """Decides by a request's ASGI scope: the port that it came in by, and its headers.

    `port` is set once the operator's own listener is bound, where there is to be one. `needs_key` may be changed.
    """

    def __init__(self, keys: KeyRing, *, needs_key: bool, has_listener: bool) -> None:
        self._keys = keys
        self.needs_key = needs_key
        self._has_listener = has_listener
        self.port: int | None = None

    def is_inside(self, scope: Scope) -> bool:
        """Whether the request came in by the operator's own listener."""
        if self.port is None:
            return False
        server = scope.get("server")
        return server is not None and server[1] == self.port

    def check_operator(self, scope: Scope) -> None:
        """Raises NotFound at the wrong listener, Unauthorized, Forbidden."""
        if self._has_listener and not self.is_inside(scope):
            raise NotFound
        if self.needs_key and not self._keys.identify(scope["headers"]).is_admin:
            raise Forbidden("This needs an API key with `admin`.", code="admin_only")

    def caller(self, scope: Scope) -> Key:
        """Whose request this is. Raises Unauthorized."""
        if self.is_inside(scope) and not self.needs_key:
            return EVERYBODY
        return self._keys.identify(scope["headers"])

    def has_diagnostics(self, scope: Scope) -> bool:
        """Whether the caller may know about replicas."""
        try:
            return self.caller(scope).has_diagnostics
        except GatewayError:
            return False
