"""Replicas in turn."""

from collections.abc import Sequence

from ..types import RequestLike
from .port import ReplicaLoad


class RoundRobin:
    """The next replica by id after the last one picked, among those with room."""

    name = "round-robin"

    def __init__(self) -> None:
        self._last = ""

    def pick(self, request: RequestLike, candidates: Sequence[ReplicaLoad]) -> tuple[str, str]:
        following = [load.replica_id for load in candidates if load.replica_id > self._last]
        self._last = following[0] if following else candidates[0].replica_id
        return self._last, f"its turn among {len(candidates)} with room"
