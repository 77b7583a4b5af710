"""The replicas: which there are, which can take work, what they serve and how loaded they say they are.

Every replica has a task of its own that probes it on a schedule, so that a slow one delays no other. What a replica
says about its load corrects the picture; a scrape that fails changes nothing, for what is in flight is counted here.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import httpx

from .api.openai_fields import TGI
from .config import GatewayConfig
from .config_sections import ReplicaConfig
from .replica import Replica
from .replica_health import EjectionRule, Rotation
from .replica_kinds import TGI_MODEL
from .replica_watch import Watcher
from .served_models import ServedModel, served_models

_Standing = tuple[frozenset[str], bool, Rotation]
"""What of a replica decides which others may be used: its models, whether it is healthy, whether it was ejected."""


class ReplicaPool:
    """All replicas of a gateway and the tasks that watch them.

    `on_change` is called once for every replica at `start()` (so that whoever schedules knows them all) and afterwards
    for real changes only, `on_removed` for one that `reconfigure` took away. `on_hung` is called for a replica that
    doesn't answer its health checks any more, again and again while that is so. `listen` begins to listen to a replica
    and returns what says whether calls have waited for it in vain since. All methods belong to the event loop.
    """

    def __init__(
        self,
        config: GatewayConfig,
        http: httpx.AsyncClient,
        clock: Callable[[], float],
        on_change: Callable[[Replica], None],
        *,
        on_hung: Callable[[str], None] | None = None,
        listen: Callable[[str], Callable[[], bool]] | None = None,
        on_removed: Callable[[str], None] | None = None,
        ejection_rule: EjectionRule | None = None,
    ) -> None:
        self._http = http
        self._clock = clock
        self._on_change = on_change
        self._on_hung = on_hung
        self._listen = listen
        self._on_removed = on_removed
        self._rule = ejection_rule if ejection_rule is not None else EjectionRule()
        self._is_running = False
        self._configured = _by_id(config)
        self._replicas = {name: Replica(item, name, self._rule) for name, item in self._configured.items()}
        self._former: dict[str, Replica] = {}  # taken away last: a call may be on its way to one
        self._closing: set[asyncio.Task[None]] = set()
        self.aliases: Mapping[str, str] = {}
        """Other names of models: alias → name."""
        self._name_models(config)
        self._standings: dict[str, _Standing] = {}
        self._num_available: Counter[str] = Counter()
        """By model, the available replicas that serve it."""
        self._told: dict[str, tuple[object, ...]] = {}
        self._watchers: dict[str, Watcher] = {}
        self._trials: dict[str, asyncio.TimerHandle] = {}
        self._has_available = asyncio.Event()

    def start(self) -> None:
        """Begins probing, the first time at once. Call on the event loop."""
        self._is_running = True
        self._watch_all()

    def _watch_all(self) -> None:
        for replica_id, replica in self._replicas.items():
            if replica_id not in self._watchers:
                configured = self._configured[replica_id]
                watcher = Watcher(
                    replica,
                    configured,
                    self._config,
                    self._http,
                    self._clock,
                    self._settle,
                    partial(self._listen_to, replica),
                )
                self._watchers[replica_id] = watcher
                self._tell(replica)
                watcher.start()

    async def aclose(self) -> None:
        """Ends probing and waits for it to have ended. Idempotent."""
        self._is_running = False
        for replica_id in tuple(self._watchers):
            self._unwatch(replica_id)
        if self._closing:
            await asyncio.wait(self._closing)

    def _unwatch(self, replica_id: str) -> None:
        if (handle := self._trials.pop(replica_id, None)) is not None:
            handle.cancel()
        if (watcher := self._watchers.pop(replica_id, None)) is not None:
            closing = asyncio.create_task(watcher.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def reconfigure(self, config: GatewayConfig) -> None:
        """From now on these replicas. What is the same server as before keeps what is known of it; calls go on."""
        before, has_same_probes = self._configured, config.probes == self._config.probes
        self._configured = _by_id(config)
        self._name_models(config)
        replicas, self._replicas, self._former = self._replicas, {}, {}
        for replica_id, item in self._configured.items():
            known = before.get(replica_id)
            if known is None or not _is_same_server(known, item):
                self._unwatch(replica_id)
                self._replicas[replica_id] = Replica(item, replica_id, self._rule)
                continue
            self._replicas[replica_id] = replicas[replica_id]
            if known != item or not has_same_probes:
                self._unwatch(replica_id)
                self._replicas[replica_id].configure(item)
        for replica_id in before.keys() - self._configured.keys():
            self._unwatch(replica_id)
            self._former[replica_id] = replicas[replica_id]
            self._told.pop(replica_id, None)
            if self._on_removed is not None:
                self._on_removed(replica_id)
        if self._is_running:
            self._watch_all()
            self._settle_all(self._clock())

    def _name_models(self, config: GatewayConfig) -> None:
        self._config = config
        self.aliases = {alias: model.name for model in config.models for alias in model.aliases}
        self._names = frozenset(model.name for model in config.models)

    async def wait_available(self) -> None:
        """Waits until a replica is available."""
        await self._has_available.wait()

    def get(self, replica_id: str) -> Replica:
        """Raises KeyError for an id that doesn't exist."""
        replica = self._replicas.get(replica_id)
        return self._former[replica_id] if replica is None else replica

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def models(self) -> dict[str, ServedModel]:
        """Models by name, in the order of the replicas; aliases are not among them."""
        return served_models(self._replicas.values())

    def resolve(self, model: str | None) -> str | None:
        """The name behind a name, an alias, or nothing (the default model). None: there is none such.

        A model that the configuration or a replica names is known even while no replica that serves it is available.
        """
        name = self.default_model if model is None else model
        if name is None:
            return None
        if any(name in replica.models for replica in self._replicas.values()) or name in self._names:
            return name
        return self.aliases.get(name) or (self.only_model(TGI) if name == TGI_MODEL else None)

    @property
    def default_model(self) -> str | None:
        """As configured; where that is the only one, the one there is now."""
        config = self._config
        return self.only_model() if config.only_model_is_default else config.default_model

    def only_model(self, feature: str | None = None) -> str | None:
        """The model of all replicas (that can do this), adapters apart; None where they serve none or several."""
        able = [replica for replica in self._replicas.values() if feature is None or feature in replica.features]
        names = {
            replica.base_model or name
            for replica in able
            for name in replica.models
            if (card := replica.cards.get(name)) is None or card.parent is None
        }
        return names.pop() if len(names) == 1 else None

    def report_failure(self, replica_id: str) -> None:
        """A call failed in a way that speaks against the replica: refused, reset, timed out, 5xx. Never a 4xx."""
        if (replica := self._replicas.get(replica_id)) is not None:
            replica.ejection.failed(self._clock())
            self._settle(replica)

    def report_refused(self, replica_id: str) -> None:
        """Nobody listens there: it counts as down until a probe, made at once, finds it well."""
        if (watcher := self._watchers.get(replica_id)) is not None:
            watcher.refused()
        self.report_failure(replica_id)

    def report_answered(self, replica_id: str) -> None:
        """The head of an answer came that doesn't speak against the replica; the rest may still fail."""
        replica = self._replicas.get(replica_id)
        if replica is not None and replica.ejection.until_s is not None:
            replica.ejection.answered(self._clock())
            self._settle(replica)

    def report_success(self, replica_id: str) -> None:
        """A call reached the replica and was answered, to the end."""
        replica = self._replicas.get(replica_id)
        if replica is not None and not replica.ejection.is_clean:
            replica.ejection.succeeded(self._clock())
            self._settle(replica)

    def _settle(self, changed: Replica) -> None:
        """Something about `changed` may have changed: works out what follows, and tells of every difference."""
        if self._replicas.get(changed.replica_id) is not changed:
            return  # taken away meanwhile
        now_s = self._clock()
        if (handle := self._trials.pop(changed.replica_id, None)) is not None:
            handle.cancel()
        standing = _, _, state = _standing(changed, now_s)
        if state is Rotation.EJECTED and self._watchers and (until_s := changed.ejection.until_s) is not None:
            loop = asyncio.get_running_loop()
            self._trials[changed.replica_id] = loop.call_later(until_s - now_s, self._settle, changed)
        if self._standings.get(changed.replica_id) != standing:
            self._settle_all(now_s)
            return
        # As before, so the others are as they were: a thousand replicas are probed without looking at all for each.
        self._tell(changed)
        if changed.is_hung and self._on_hung is not None:
            self._on_hung(changed.replica_id)

    def _settle_all(self, now_s: float) -> None:
        replicas = self._replicas.values()
        self._standings = {replica.replica_id: _standing(replica, now_s) for replica in replicas}
        states = {replica_id: state for replica_id, (_, is_healthy, state) in self._standings.items() if is_healthy}
        # A doubtful replica is better than none (Envoy's panic mode): only those are left out, or held to one request,
        # whose every model others serve.
        trusted = _models(replica for replica in replicas if states.get(replica.replica_id) is Rotation.IN)
        usable = _models(
            replica for replica in replicas if states.get(replica.replica_id, Rotation.EJECTED) is not Rotation.EJECTED
        )
        for replica in replicas:
            found = states.get(replica.replica_id)
            replica.put_on_trial(found is Rotation.TRIAL and replica.models <= trusted.keys())
            replica.is_available = found is not None and (
                found is not Rotation.EJECTED or not replica.models <= usable.keys()
            )
            self._tell(replica)
        self._num_available = _models(replica for replica in replicas if replica.is_available)
        if any(replica.is_available for replica in replicas):
            self._has_available.set()
        else:
            self._has_available.clear()
        for replica in replicas:
            if replica.is_hung and self._on_hung is not None:
                self._on_hung(replica.replica_id)

    def _listen_to(self, replica: Replica) -> Callable[[], bool]:
        beside = 1 if replica.is_available else 0
        others_can = all(self._num_available[name] > beside for name in replica.models)
        if self._listen is None or not others_can:
            return lambda: False  # nobody could take its calls: no haste
        return self._listen(replica.replica_id)

    def _tell(self, replica: Replica) -> None:
        seen = replica.as_seen()
        if self._told.get(replica.replica_id) != seen:
            self._told[replica.replica_id] = seen
            self._on_change(replica)


def _by_id(config: GatewayConfig) -> dict[str, ReplicaConfig]:
    return {item.id or f"r{position}": item for position, item in enumerate(config.replicas, start=1)}


def _is_same_server(one: ReplicaConfig, other: ReplicaConfig) -> bool:
    """Whether what was found out about the one is true of the other."""
    return (one.url, one.kind, one.models, one.also_serves) == (other.url, other.kind, other.models, other.also_serves)


def _models(replicas: Iterable[Replica]) -> Counter[str]:
    """How many of them serve each model."""
    return Counter(name for replica in replicas for name in replica.models)


def _standing(replica: Replica, now_s: float) -> _Standing:
    return replica.models, replica.is_healthy, replica.ejection.state(now_s)
