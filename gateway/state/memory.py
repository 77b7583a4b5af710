"""One gateway alone: nothing is shared, so all of a replica's capacity is granted as soon as it is wanted."""

from policies.types import WantCapacity

from .port import OnGrant


class MemoryCapacity:
    """Implements `port.SharedCapacity` for a gateway that has its replicas to itself."""

    def __init__(self) -> None:
        self._on_grant: OnGrant | None = None

    def start(self, on_grant: OnGrant) -> None:
        self._on_grant = on_grant

    def want(self, want: WantCapacity) -> None:
        if self._on_grant is not None:
            self._on_grant(want.replica_id, None)

    async def aclose(self) -> None:
        self._on_grant = None
