"""The replicas there are, and which of them can serve what."""

from .admission.port import Admission
from .job import PoolKey
from .pool import Pool
from .slots import ReplicaSlots
from .types import ReplicaLike

_NONE: frozenset[str] = frozenset()


class Fleet:
    """Every replica's ledger, and pools of them by what they serve, kept until a replica comes, goes or changes."""

    def __init__(self, admission: Admission) -> None:
        self.replicas: dict[str, ReplicaSlots] = {}
        self._admission = admission
        self._pools: dict[PoolKey, Pool] = {}
        self._served: frozenset[str] | None = None  # None: to be looked up
        self._num_limited = 0  # replicas of which less than everything was granted

    def govern(self, admission: Admission) -> None:
        """From now on its caps hold."""
        self._admission = admission
        self._forget_pools()

    def announce(self, replica: ReplicaLike) -> None:
        """A replica is new, or something of it changed."""
        slots = self.replicas.get(replica.replica_id)
        if slots is None:
            self.replicas[replica.replica_id] = ReplicaSlots(replica)
            self._num_limited += 1
        else:
            slots.replica = replica
            slots.is_removed = False
        self._forget_pools()

    def remove(self, replica_id: str) -> None:
        """Nothing more is sent there; it is forgotten once its last call has ended."""
        slots = self.replicas[replica_id]
        slots.is_removed = True
        self._forget_pools()
        self.forget_if_removed(slots)

    def forget_if_removed(self, slots: ReplicaSlots) -> None:
        if slots.is_removed and not slots.calls and not slots.parked_tokens:
            self._num_limited -= slots.granted_tokens is not None
            del self.replicas[slots.replica_id]
            self._served = None

    def grant(self, replica_id: str, tokens: int | None) -> None:
        """So many tokens may be in flight there in all; None: everything."""
        slots = self.replicas[replica_id]
        self._num_limited += (tokens is not None) - (slots.granted_tokens is not None)
        slots.grant(tokens)

    @property
    def is_all_granted(self) -> bool:
        """Whether nobody has to be asked for capacity."""
        return not self._num_limited

    def serves(self, model: str) -> bool:
        """Whether any replica names this model, available or not."""
        if self._served is None:
            self._served = frozenset().union(*(slots.replica.models for slots in self.replicas.values()))
        return model in self._served

    def pool(self, key: PoolKey) -> Pool:
        """The replicas that may be used at all: available and serving the model; also those that `key` excludes."""
        model, adapter, feature, exclude, is_long = key
        if exclude or is_long:
            key = PoolKey(model, adapter, feature, _NONE)
        pool = self._pools.get(key)
        if pool is None:
            pool = Pool([slots for slots in self._in_order() if _can(slots, model, adapter, feature)], self._admission)
            if pool.members:  # nobody is to fill the memory with names of what doesn't exist
                self._pools[key] = pool
                for slots in pool.members:
                    slots.told.append(pool.stale)
        return pool

    def has_replica(self, key: PoolKey) -> bool:
        """Whether there is a replica that may be used: available, serving the model, not excluded."""
        exclude = key[3]
        return any(slots.replica_id not in exclude for slots in self.pool(key).members)

    def check_integrity(self) -> None:
        """Raises AssertionError where two records of the same fact differ."""
        for slots in self.replicas.values():
            in_calls = sum(call.slot_tokens for call in slots.calls.values())
            assert slots.in_flight_tokens == in_calls + slots.parked_tokens
            assert slots.prefill_tokens == sum(call.prefill_tokens for call in slots.calls.values())
        for pool in self._pools.values():
            pool.check_integrity()
        assert self._num_limited == sum(slots.granted_tokens is not None for slots in self.replicas.values())

    def _in_order(self) -> list[ReplicaSlots]:
        return [slots for _, slots in sorted(self.replicas.items())]

    def _forget_pools(self) -> None:
        self._served = None
        if self._pools:
            self._pools.clear()
            for slots in self.replicas.values():
                slots.told.clear()


def _can(slots: ReplicaSlots, model: str, adapter: str | None, feature: str | None) -> bool:
    replica = slots.replica
    return (
        replica.is_available
        and not slots.is_removed
        and model in replica.models
        and (adapter is None or adapter in replica.models)
        and (feature is None or feature in replica.features)
    )
