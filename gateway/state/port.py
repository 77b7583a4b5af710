"""The port: what several gateways in front of the same replicas share."""

from collections.abc import Callable
from typing import Protocol

from policies.types import WantCapacity

OnGrant = Callable[[str, int | None], None]
"""Called on the event loop with a replica's id and the tokens that this gateway may have in flight there, in all."""


class SharedCapacity(Protocol):
    """Divides the replicas' capacity among gateways. The implementation owns the division; the core only its grants.

    Tokens are prompt + predicted output tokens. A grant replaces the one before. None as a grant: everything.
    All methods belong to the event loop.
    """

    def start(self, on_grant: OnGrant) -> None:
        """Begins granting, at once or later, to the end. Once."""
        ...

    def want(self, want: WantCapacity) -> None:
        """The head of the queue needs more on a replica than was granted. Never blocks, never raises."""
        ...

    async def aclose(self) -> None:
        """Gives back what was granted. Idempotent."""
        ...
