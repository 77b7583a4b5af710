"""The replicas: which there are, which can take work, what they serve and how loaded they say they are.

Every replica has a task of its own that probes it on a schedule, so that a slow one delays no other. What a replica
says about its load corrects the picture; a scrape that fails changes nothing, for what is in flight is counted here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from .api.openai_fields import TGI, TOKENIZE
from .config import GatewayConfig, ReplicaConfig
from .config_values import DEFAULT_PORTS
from .replica_health import Ejection, EjectionRule, Rotation
from .replica_kinds import TGI_MODEL, features_of
from .replica_metrics import ReplicaLoad, parse_load
from .replica_probe import Health, ModelCard, Prober

logger = logging.getLogger(__name__)

_MAY_TOKENIZE = frozenset({"vllm", "tailgate-backend", "sglang"})
_MAY_DESCRIBE = frozenset({"vllm", "sglang", "openai"})

SLOW_PROBES = 3
"""Health checks in a row that may time out before a replica counts as down: a busy engine answers late."""


class Replica:
    """An upstream server: what was configured and what the last probe found. Implements `policies.types.ReplicaLike`.

    Written by its pool only, on the event loop, which calls `on_change` after every change that scheduling sees.
    """

    def __init__(self, config: ReplicaConfig, replica_id: str, rule: EjectionRule) -> None:
        self.configure(config)
        self.replica_id = replica_id
        self.url = config.url
        parts = urlsplit(config.url)
        self.is_tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or DEFAULT_PORTS[parts.scheme]
        self.kind: str = config.kind
        """As configured; "auto" until it was found out."""
        self.models: frozenset[str] = frozenset(config.models or ())
        self.cards: Mapping[str, ModelCard] = {}
        """What it says about its models."""
        self.features: frozenset[str] = frozenset()
        """Optional abilities that were seen to work, such as `replica_probe.TOKENIZE`."""
        self.base_model: str | None = None
        """The one whose weights it loaded, where it tells: others are adapters."""
        self.load: ReplicaLoad | None = None
        """The last scrape that worked, with its instant; None before."""
        self.is_healthy = False
        """Whether the last health checks were green and its models are known."""
        self.is_available = False
        self.is_hung = False
        """Whether it isn't healthy because it doesn't answer health checks at all, neither well nor ill."""
        self.last_error: str | None = None
        """Why it isn't healthy, in words; None while it is."""
        self.ejection = Ejection(rule)
        self._is_on_trial = False

    def configure(self, config: ReplicaConfig) -> None:
        """Caps, credentials and the like, of what is the same server as before."""
        self._config = config
        self.authorization = config.authorization_header
        self.priority_scheduling = config.priority_scheduling

    @property
    def max_model_len(self) -> dict[str, int]:
        """Longest prompt + output by model, tokens, for the models whose bound the replica tells."""
        return {name: card.max_model_len for name, card in self.cards.items() if card.max_model_len is not None}

    @property
    def max_in_flight_tokens(self) -> int | None:
        """What was configured, else the KV cache's capacity where it is known.

        On trial: 1, so that one request goes, since every admission policy lets a request alone in. Only where others
        can take the rest: see `ReplicaPool`.
        """
        if self._is_on_trial:
            return 1
        if self._config.max_in_flight_tokens is not None:
            return self._config.max_in_flight_tokens
        return self.load.kv_capacity_tokens if self.load is not None else None

    @property
    def max_in_flight_requests(self) -> int | None:
        return self._config.max_in_flight_requests

    @property
    def max_prefill_tokens(self) -> int | None:
        return self._config.max_prefill_tokens

    def wire_name(self, model: str) -> str:
        """What this replica calls a model of its list."""
        return TGI_MODEL if self.kind == "tgi" and model == self.base_model else model

    def put_on_trial(self, is_on_trial: bool) -> None:
        self._is_on_trial = is_on_trial

    def as_seen(self) -> tuple[object, ...]:
        """What scheduling and the list of models depend on: equal before and after means no change."""
        return (
            self.models,
            self.features,
            self.is_available,
            self.max_in_flight_tokens,
            self.max_in_flight_requests,
            self.max_prefill_tokens,
            self.kind,
        )


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the gateway's own list shows it."""

    name: str
    max_model_len: int | None
    """The shortest among the replicas that tell, tokens."""
    root: str | None
    parent: str | None
    replica_ids: tuple[str, ...]
    is_available: bool
    """Whether a replica that serves it can take work."""


class ReplicaPool:
    """All replicas of a gateway and the tasks that watch them.

    `on_change` is called once for every replica at `start()` (so that whoever schedules knows them all) and afterwards
    for real changes only, `on_removed` for one that `reconfigure` took away. `on_hung` is called for a replica that
    doesn't answer its health checks any more, again and again while that is so. All methods belong to the event loop.
    """

    def __init__(
        self,
        config: GatewayConfig,
        http: httpx.AsyncClient,
        clock: Callable[[], float],
        on_change: Callable[[Replica], None],
        *,
        on_hung: Callable[[str], None] | None = None,
        on_removed: Callable[[str], None] | None = None,
        ejection_rule: EjectionRule | None = None,
    ) -> None:
        self._http = http
        self._clock = clock
        self._on_change = on_change
        self._on_hung = on_hung
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
        self._told: dict[str, tuple[object, ...]] = {}
        self._watchers: dict[str, _Watcher] = {}
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
                watcher = _Watcher(replica, configured, self._config, self._http, self._clock, self._settle)
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
            self._settle(next(iter(self._replicas.values())))

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
        serving: dict[str, list[Replica]] = {}
        for replica in self._replicas.values():
            for name in sorted(replica.models):
                serving.setdefault(name, []).append(replica)
        return {name: _served(name, replicas) for name, replicas in serving.items()}

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
        """As configured."""
        return self._config.default_model

    def only_model(self, feature: str) -> str | None:
        """The model of all replicas that can do this, adapters apart; None where they serve none or several."""
        able = [replica for replica in self._replicas.values() if feature in replica.features]
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
        """Works out availability after something about `changed` changed, and tells of every difference."""
        now_s = self._clock()
        if (handle := self._trials.pop(changed.replica_id, None)) is not None:
            handle.cancel()
        state = changed.ejection.state(now_s)
        if state is Rotation.EJECTED and self._watchers and (until_s := changed.ejection.until_s) is not None:
            loop = asyncio.get_running_loop()
            self._trials[changed.replica_id] = loop.call_later(until_s - now_s, self._settle, changed)
        healthy = [replica for replica in self._replicas.values() if replica.is_healthy]
        states = {replica.replica_id: replica.ejection.state(now_s) for replica in healthy}
        # A doubtful replica is better than none (Envoy's panic mode): only those are left out, or held to one request,
        # whose every model others serve.
        trusted = _models(replica for replica in healthy if states[replica.replica_id] is Rotation.IN)
        usable = _models(replica for replica in healthy if states[replica.replica_id] is not Rotation.EJECTED)
        for replica in self._replicas.values():
            found = states.get(replica.replica_id)
            replica.put_on_trial(found is Rotation.TRIAL and replica.models <= trusted)
            replica.is_available = found is not None and (found is not Rotation.EJECTED or not replica.models <= usable)
            self._tell(replica)
        if any(replica.is_available for replica in self._replicas.values()):
            self._has_available.set()
        else:
            self._has_available.clear()
        for replica in self._replicas.values():
            if replica.is_hung and self._on_hung is not None:
                self._on_hung(replica.replica_id)

    def _tell(self, replica: Replica) -> None:
        seen = replica.as_seen()
        if self._told.get(replica.replica_id) != seen:
            self._told[replica.replica_id] = seen
            self._on_change(replica)


class _Watcher:
    """Probes one replica on a schedule and writes down what it finds."""

    def __init__(
        self,
        replica: Replica,
        configured: ReplicaConfig,
        config: GatewayConfig,
        http: httpx.AsyncClient,
        clock: Callable[[], float],
        settle: Callable[[Replica], None],
    ) -> None:
        self._replica = replica
        self._configured = configured
        self._interval_s = config.probes.interval_s
        self._prober = Prober(http, replica.url, replica.authorization, config.probes.timeout_s)
        self._clock = clock
        self._settle = settle
        self._num_slow = 0
        self._is_identified = False
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"probe-{self._replica.replica_id}")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def refused(self) -> None:
        """A call found nobody listening: so it is, until the next probe, which is made at once."""
        self._lost("it refuses connections")
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            try:
                await self._probe()
            except Exception:
                # A replica can answer anything; whatever it was, the next probe must come.
                logger.exception("probing replica %s failed", self._replica.replica_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wanted.wait()

    async def _probe(self) -> None:
        replica = self._replica
        health, why = await self._prober.health()
        self._num_slow = self._num_slow + 1 if health is Health.SLOW else 0
        if health is Health.DOWN or (health is Health.SLOW and self._num_slow >= SLOW_PROBES):
            self._lost(f"its health check failed: {why}")
            replica.is_hung = health is Health.SLOW
        elif health is Health.GREEN:
            await self._learn()
        self._settle(replica)

    def _lost(self, error: str) -> None:
        if self._replica.is_healthy or self._replica.last_error is None:
            logger.warning("replica %s (%s): %s", self._replica.replica_id, self._replica.url, error)
        self._replica.is_healthy = self._replica.is_hung = False
        self._replica.last_error = error
        self._is_identified = False  # what comes back may be another server

    async def _learn(self) -> None:
        replica = self._replica
        cards = await self._prober.models()
        page = await self._prober.metrics_page()
        load = self._parse(page) if page is not None else None
        if load is not None:
            if replica.load is not None and replica.load.process_start != load.process_start:
                self._is_identified = False
            replica.load = load
        if not cards and not self._is_identified and (info := await self._prober.tgi_info()) is not None:
            cards = {info[0]: ModelCard(max_model_len=info[1])}
        if cards:
            replica.cards = cards
            replica.models = frozenset(self._configured.models if self._configured.models is not None else cards)
        if not replica.models:
            self._lost("it names no models at /v1/models, and none are configured for it")
            return
        if not self._is_identified:
            await self._identify(replica.cards, load.engine if load is not None else None)
        if not replica.is_healthy:
            logger.info("replica %s (%s): %s, serves %s", replica.replica_id, replica.url, replica.kind, _list(replica))
        replica.is_healthy, replica.is_hung = True, False
        replica.last_error = None

    def _parse(self, page: str) -> ReplicaLoad | None:
        try:
            return parse_load(page, self._clock())
        except Exception as error:  # the parser raises what it likes for pages that aren't in its format
            logger.debug("the metrics of replica %s can't be read: %s", self._replica.replica_id, error)
            return None

    async def _identify(self, cards: Mapping[str, ModelCard], engine: str | None) -> None:
        replica = self._replica
        if self._configured.kind == "auto":
            replica.kind = await self._prober.kind(cards, engine)
        described = await self._prober.described_paths() if replica.kind in _MAY_DESCRIBE else None
        features = {*features_of(replica.kind, described), *self._configured.also_serves}
        if replica.kind == "tgi" and (info := await self._prober.tgi_info()) is not None:
            replica.base_model = info[0]
        if replica.kind in _MAY_TOKENIZE and await self._prober.has_tokenize(min(replica.models)):
            features.add(TOKENIZE)
        replica.features = frozenset(features)
        self._is_identified = True


def _by_id(config: GatewayConfig) -> dict[str, ReplicaConfig]:
    return {item.id or f"r{position}": item for position, item in enumerate(config.replicas, start=1)}


def _is_same_server(one: ReplicaConfig, other: ReplicaConfig) -> bool:
    """Whether what was found out about the one is true of the other."""
    return (one.url, one.kind, one.models, one.also_serves) == (other.url, other.kind, other.models, other.also_serves)


def _models(replicas: Iterable[Replica]) -> set[str]:
    return {name for replica in replicas for name in replica.models}


def _list(replica: Replica) -> str:
    return ", ".join(sorted(replica.models))


def _served(name: str, replicas: list[Replica]) -> ServedModel:
    cards = [replica.cards[name] for replica in replicas if name in replica.cards]
    lengths = [card.max_model_len for card in cards if card.max_model_len is not None]
    return ServedModel(
        name=name,
        max_model_len=min(lengths, default=None),
        root=next((card.root for card in cards if card.root is not None), None),
        parent=next((card.parent for card in cards if card.parent is not None), None),
        replica_ids=tuple(replica.replica_id for replica in replicas),
        is_available=any(replica.is_available for replica in replicas),
    )
