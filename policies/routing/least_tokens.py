"""The replica with the fewest tokens in flight."""

from ..types import RequestLike
from .port import Room


class LeastTokens:
    """Fewest in-flight tokens; ties go to the one that was given a call longest ago, so that idle replicas share."""

    name = "least-tokens"

    def pick(self, request: RequestLike, room: Room) -> tuple[str, str]:
        best = room.least_loaded()
        return best.replica_id, f"fewest tokens in flight, {best.in_flight_tokens}, of those with room"
