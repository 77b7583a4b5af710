"""Replicas in turn."""

from ..types import RequestLike
from .port import Room


class RoundRobin:
    """The next replica by id after the last one picked, among those with room."""

    name = "round-robin"

    def __init__(self) -> None:
        self._last = ""

    def pick(self, request: RequestLike, room: Room) -> tuple[str, str]:
        self._last = room.following(self._last).replica_id
        return self._last, "its turn among those with room"
