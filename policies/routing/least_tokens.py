"""The replica with the fewest tokens in flight."""

from collections.abc import Sequence

from ..types import RequestLike
from .port import ReplicaLoad


class LeastTokens:
    """Fewest in-flight tokens; ties go to the one that was picked longest ago, so that idle replicas share."""

    name = "least-tokens"

    def __init__(self) -> None:
        self._picked_at: dict[str, int] = {}
        self._num_picks = 0

    def pick(self, request: RequestLike, candidates: Sequence[ReplicaLoad]) -> tuple[str, str]:
        best = candidates[0]
        if len(candidates) > 1:
            best = min(candidates, key=lambda load: (load.in_flight_tokens, self._picked_at.get(load.replica_id, 0)))
        self._num_picks += 1
        self._picked_at[best.replica_id] = self._num_picks
        return best.replica_id, f"fewest tokens in flight, {best.in_flight_tokens}, of {len(candidates)} with room"
