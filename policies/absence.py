"""How long requests have been without any replica that could serve them."""

from collections.abc import Set

from .job import PoolKey


class Absence:
    """Since when each pool with waiting requests has had no replica, and until when it last had none."""

    def __init__(self) -> None:
        self._since_s: dict[PoolKey, float] = {}
        self._until_s: dict[PoolKey, float] = {}

    @property
    def is_noted(self) -> bool:
        """Whether any pool was without a replica when it was last looked at."""
        return bool(self._since_s)

    def note(self, pools: Set[PoolKey], now_s: float) -> None:
        """These pools, and no others, are without a replica now."""
        for pool in self._since_s.keys() - pools:
            self._until_s[pool] = now_s
        self._since_s = {pool: self._since_s.get(pool, now_s) for pool in pools}

    def give_up(self, grace_s: float, now_s: float) -> set[PoolKey]:
        """The pools whose grace is over; they are forgotten."""
        given_up = {pool for pool, since_s in self._since_s.items() if now_s >= since_s + grace_s}
        if given_up:
            self._since_s = {pool: since_s for pool, since_s in self._since_s.items() if pool not in given_up}
        return given_up

    def ends_s(self, grace_s: float) -> list[float]:
        """The instants at which pools are to be given up."""
        return [since_s + grace_s for since_s in self._since_s.values()]

    def held_back(self, pool: PoolKey, arrival_s: float) -> bool:
        """Whether a request that came then was in a pool without a replica, and the pool has had one again."""
        return arrival_s < self._until_s.get(pool, float("-inf"))
