"""The replicas that can serve the same requests, in order of how loaded they are."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Sequence
from operator import attrgetter

from .admission.port import Admission
from .routing.port import ReplicaLoad
from .slots import ReplicaSlots

_Entry = tuple[int, int, str, float, ReplicaSlots]
"""Tokens in flight, last call id, replica id; then for how many tokens it has room, and the replica."""


class Pool:
    """Answers which replica is the least loaded, and whether any has room, without looking at each.

    What changed is put in its place when the next question comes. Sorted lists, not heaps: to move the entries behind
    one costs less than a few comparisons, with a thousand replicas too, and a question may pass over some.
    """

    def __init__(self, members: Sequence[ReplicaSlots], admission: Admission) -> None:
        """`members` in order of replica id."""
        self.members = members
        self.stale = set(members)
        """Whoever changes a member puts it here."""
        self._admission = admission
        self._entries: dict[str, _Entry] = {}
        self._open: list[_Entry] = []  # sorted: those where a call could start that is small enough
        self._closed: list[_Entry] = []  # the others, sorted
        self._rooms: list[float] = []  # of `_open`, sorted: the last is the largest

    def room(self, tokens: int, without: Container[str] = ()) -> "Room | None":
        """Where so many tokens have room; `without` these replicas. None: nowhere."""
        if self.stale:
            self._settle()
        if self._rooms and self._rooms[-1] >= tokens:
            for _, _, replica_id, room_tokens, slots in self._open:
                if room_tokens >= tokens and replica_id not in without:
                    return Room(self, slots, tokens, without)
        return None

    def nearest(self, without: Container[str]) -> ReplicaSlots | None:
        """The one with the fewest tokens in flight, whether it has room or not; None: all are left out."""
        self._settle()
        firsts = [
            next((entry for entry in entries if entry[2] not in without), None)
            for entries in (self._open, self._closed)
        ]
        found = [entry for entry in firsts if entry is not None]
        return min(found)[4] if found else None

    def has_room(self, slots: ReplicaSlots, tokens: int) -> bool:
        """Whether a member has room for so many tokens, as of the last question."""
        return self._entries[slots.replica_id][3] >= tokens

    def check_integrity(self) -> None:
        """Raises AssertionError where the order isn't what the members say."""
        self._settle()
        fresh = Pool(self.members, self._admission)
        fresh._settle()
        assert (self._open, self._closed, self._rooms) == (fresh._open, fresh._closed, fresh._rooms)

    def _settle(self) -> None:
        for slots in self.stale:
            admission, replica = self._admission, slots.replica
            room_tokens = slots.room_tokens(
                admission.max_in_flight_tokens(replica), admission.max_prefill_tokens(replica)
            )
            if (granted_tokens := slots.granted_room_tokens) < room_tokens:
                room_tokens = granted_tokens
            entry = (slots.in_flight_tokens, slots.last_call_id, slots.replica_id, room_tokens, slots)
            if (before := self._entries.get(slots.replica_id)) is not None:
                self._take_out(before)
            self._entries[slots.replica_id] = entry
            if room_tokens < 0:
                insort(self._closed, entry)
            else:
                insort(self._open, entry)
                insort(self._rooms, room_tokens)
        self.stale.clear()

    def _take_out(self, entry: _Entry) -> None:
        if entry[3] < 0:
            del self._closed[bisect_left(self._closed, entry)]
        else:
            del self._open[bisect_left(self._open, entry)]
            del self._rooms[bisect_left(self._rooms, entry[3])]


class Room:
    """Implements `routing.port.Room`."""

    __slots__ = ("_least_loaded", "_pool", "_tokens", "_without")

    def __init__(self, pool: Pool, least_loaded: ReplicaSlots, tokens: int, without: Container[str]) -> None:
        self._pool = pool
        self._least_loaded = least_loaded
        self._tokens = tokens
        self._without = without

    def least_loaded(self) -> ReplicaLoad:
        return self._least_loaded.load()

    def following(self, replica_id: str) -> ReplicaLoad:
        members = self._pool.members
        place = bisect_right(members, replica_id, key=attrgetter("replica_id")) % len(members)
        while not self._has(members[place]):
            place = (place + 1) % len(members)
        return members[place].load()

    def all(self) -> list[ReplicaLoad]:
        return [slots.load() for slots in self._pool.members if self._has(slots)]

    def _has(self, slots: ReplicaSlots) -> bool:
        return slots.replica_id not in self._without and self._pool.has_room(slots, self._tokens)
