"""The index of replicas says what looking at each of them would say."""

import random
from collections.abc import Set

import pytest

from policies.admission.fixed import FixedCaps
from policies.fleet import Fleet
from policies.job import PoolKey, RunningCall
from policies.pool import Pool
from policies.slots import ReplicaSlots
from policies.types import ReplicaLike
from tests.policies.support import FakeReplica

MODELS = ("m", "n")
FEATURES = (None, "chat")


class Caps(FixedCaps):
    """An admission whose caps move, as those of one that learns."""

    def __init__(self) -> None:
        super().__init__(in_flight_tokens=1000, prefill_tokens=300)
        self.tokens: dict[str, int] = {}

    def max_in_flight_tokens(self, replica: ReplicaLike) -> int:
        return self.tokens.get(replica.replica_id, 1000)


class Naive:
    """The rules as they are stated, replica by replica."""

    def __init__(self, fleet: Fleet, caps: Caps) -> None:
        self._fleet = fleet
        self._caps = caps

    def eligible(self, key: PoolKey) -> list[ReplicaSlots]:
        model, adapter, feature, exclude, _ = key
        return [
            slots
            for replica_id, slots in sorted(self._fleet.replicas.items())
            if slots.replica.is_available
            and not slots.is_removed
            and model in slots.replica.models
            and (adapter is None or adapter in slots.replica.models)
            and (feature is None or feature in slots.replica.features)
            and replica_id not in exclude
        ]

    def has_room(self, slots: ReplicaSlots, tokens: int) -> bool:
        if slots.granted_tokens is not None and slots.in_flight_tokens + tokens > slots.granted_tokens:
            return False
        if not slots.calls:
            return True
        most = slots.replica.max_in_flight_requests
        return (
            (most is None or len(slots.calls) < most)
            and slots.in_flight_tokens + tokens <= self._caps.max_in_flight_tokens(slots.replica)
            and slots.prefill_tokens < 300
        )

    def with_room(self, key: PoolKey, tokens: int, reserved: Set[str]) -> list[ReplicaSlots]:
        return [
            slots for slots in self.eligible(key) if slots.replica_id not in reserved and self.has_room(slots, tokens)
        ]


def random_replica(rng: random.Random, replica_id: str) -> FakeReplica:
    return FakeReplica(
        replica_id,
        models=frozenset(rng.sample(MODELS, rng.randint(1, 2))),
        features=frozenset({"chat"} if rng.random() < 0.7 else ()),
        is_available=rng.random() < 0.9,
        max_in_flight_requests=rng.choice((None, 3)),
    )


@pytest.mark.parametrize("num_replicas", [1, 3, 20])
def test_the_index_answers_as_looking_at_every_replica_does(num_replicas: int) -> None:
    """Random calls, grants, caps, exclusions, changes and removals: the same have room, the same one is first."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    caps = Caps()
    fleet = Fleet(caps)
    naive = Naive(fleet, caps)
    running: list[RunningCall] = []
    ids = [f"r{number:02d}" for number in range(num_replicas)]
    for call_id in range(1, 1500):
        action, replica_id = rng.random(), rng.choice(ids)
        slots = fleet.replicas.get(replica_id)
        if slots is None or action < 0.02:
            fleet.announce(random_replica(rng, replica_id))
            fleet.grant(replica_id, rng.choice((None, None, 700)))
        elif action < 0.03:
            fleet.remove(replica_id)
        elif action < 0.05:
            fleet.grant(replica_id, rng.choice((None, 0, 500)))
        elif action < 0.3 and running:
            call = running.pop(rng.randrange(len(running)))
            caps.tokens[call.replica_id] = rng.randint(300, 1500)
            fleet.replicas[call.replica_id].give_back(call)
            fleet.forget_if_removed(fleet.replicas[call.replica_id])
        elif action < 0.5 and running:
            call = rng.choice(running)
            fleet.replicas[call.replica_id].prefill_ended(call)
        elif action < 0.6 and running:
            call = rng.choice(running)
            fleet.replicas[call.replica_id].resize(call, call.slot_tokens + rng.randint(-5, 50))

        exclude = frozenset(rng.sample(ids, rng.choice((0, 0, min(2, num_replicas)))))
        reserved = set(rng.sample(ids, rng.choice((0, 0, 1))))
        key = PoolKey(rng.choice(MODELS), rng.choice((None, "n")), rng.choice(FEATURES), exclude)
        tokens = rng.choice((10, 20, 100, 400))
        expected = naive.with_room(key, tokens, reserved)
        pool = fleet.pool(key)
        pool.check_integrity()
        without = exclude | reserved
        assert fleet.has_replica(key) == bool(naive.eligible(key))
        unreserved = [slots for slots in naive.eligible(key) if slots.replica_id not in reserved]
        nearest = pool.nearest(without)
        assert nearest is (min(unreserved, key=load_of) if unreserved else None)
        room = pool.room(tokens, without)
        if room is None:
            assert expected == []
            continue
        first = min(expected, key=load_of)
        assert list(room.all()) == [slots.load() for slots in expected]
        assert room.least_loaded() == first.load()
        last = rng.choice(ids)
        later = [slots for slots in expected if slots.replica_id > last]
        assert room.following(last) == (later or expected)[0].load()
        call = RunningCall(call_id, first.replica_id, tokens, tokens // 2, None)
        first.take(call)
        running.append(call)


def load_of(slots: ReplicaSlots) -> tuple[int, int, str]:
    return (slots.in_flight_tokens, slots.last_call_id, slots.replica_id)


def test_a_thousand_replicas_are_not_looked_at_for_one_decision() -> None:
    """Once in order, a change costs a look at what changed: the caps of the others aren't asked for again."""
    asked: list[str] = []

    class Counting(Caps):
        def max_in_flight_tokens(self, replica: ReplicaLike) -> int:
            asked.append(replica.replica_id)
            return 1000

    members = [ReplicaSlots(FakeReplica(f"r{number:04d}")) for number in range(1000)]
    pool = Pool(members, Counting())
    for slots in members:
        slots.grant(None)
        slots.told.append(pool.stale)
    assert pool.room(10) is not None
    asked.clear()
    members[3].take(RunningCall(1, "r0003", 10, 10, None))
    room = pool.room(10)
    assert room is not None
    assert room.least_loaded().replica_id == "r0000"
    assert asked == ["r0003"]


def test_names_of_what_nobody_serves_leave_nothing_behind() -> None:
    """Pools without a replica aren't kept, whatever is asked for."""
    fleet = Fleet(Caps())
    fleet.announce(FakeReplica())
    for number in range(100):
        assert not fleet.has_replica(PoolKey(f"model-{number}", None, None, frozenset()))
        assert fleet.has_replica(PoolKey("m", None, None, frozenset({f"r-{number}"})))
    assert len(fleet._pools) == 1
