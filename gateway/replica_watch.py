"""Probing one replica on a schedule: whether it is well, what it serves, what it can do, how loaded it says it is."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

import httpx

from policies.slicing import WholeCalls

from .api.openai_fields import TOKENIZE
from .config import GatewayConfig
from .config_sections import ReplicaConfig
from .prefix_probe import find_prefix_caching
from .replica import Replica
from .replica_kinds import features_of
from .replica_metrics import ReplicaLoad, parse_load
from .replica_probe import Health, ModelCard, Prober

logger = logging.getLogger(__name__)

_MAY_TOKENIZE = frozenset({"vllm", "tailgate-backend", "sglang"})
_MAY_SLICE = frozenset({"vllm", "tailgate-backend"})
_MAY_DESCRIBE = frozenset({"vllm", "sglang", "openai"})

SLOW_PROBES = 3
"""Health checks in a row that may time out before a replica counts as down: a busy engine answers late."""
SILENT_PROBES = 2
"""The same where its calls hear nothing either, while others could take them."""
SUSPECT_S = 1.0
"""Calls that wait so long, and hear nothing, are reason to look whether it is well."""
ASK_AGAIN_S = 30.0
"""Until a replica that gave no answer about its prefix cache is asked again."""
RECHECK_S = 0.5
"""A replica that is down is looked at this often, for the sake of whoever waits for its return."""


class Watcher:
    """Probes one replica on a schedule and writes down what it finds."""

    def __init__(
        self,
        replica: Replica,
        configured: ReplicaConfig,
        config: GatewayConfig,
        http: httpx.AsyncClient,
        clock: Callable[[], float],
        settle: Callable[[Replica], None],
        listen: Callable[[], Callable[[], bool]],
    ) -> None:
        self._replica = replica
        self._configured = configured
        self._interval_s = config.probes.interval_s
        self._prober = Prober(http, replica.url, replica.authorization, config.probes.timeout_s)
        self._clock = clock
        self._settle = settle
        self._listen = listen
        self._num_slow = self._num_silent = 0
        self._slices = config.policy.slicing != WholeCalls.name
        self._prefixes_due_s: float | None = None  # when to ask again whether prefixes are cached
        self._is_identified = False
        self._capacity_tokens: int | None = None
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
        is_suspect = False
        while True:
            self._wanted.clear()
            try:
                await self._probe(is_suspect=is_suspect)
            except Exception:
                # A replica can answer anything; whatever it was, the next probe must come.
                logger.exception("probing replica %s failed", self._replica.replica_id)
            is_suspect = await self._pause()

    async def _pause(self) -> bool:
        """Until the next probe is due; whether it is early, since calls wait and hear nothing."""
        is_watched = self._replica.is_healthy
        if is_watched and self._num_silent:
            return True
        left_s = self._interval_s if is_watched else min(self._interval_s, RECHECK_S)
        while left_s > 0.0 and not self._wanted.is_set():
            slice_s = min(left_s, SUSPECT_S)
            left_s -= slice_s
            is_silent = self._listen()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(slice_s):
                    await self._wanted.wait()
            if is_watched and is_silent():
                return left_s > 0.0
        return False

    async def _probe(self, *, is_suspect: bool) -> None:
        """Ask whether it is well, and what there is to know; not the latter for a suspicion."""
        replica, is_silent = self._replica, self._listen()
        health, why = await self._prober.health()
        is_slow = health is Health.SLOW
        self._num_slow = self._num_slow + 1 if is_slow else 0
        self._num_silent = self._num_silent + 1 if is_slow and is_silent() else 0
        if health is Health.DOWN or self._num_slow >= SLOW_PROBES or self._num_silent >= SILENT_PROBES:
            self._lost(f"its health check failed: {why}")
            replica.is_hung = is_slow
        elif health is Health.GREEN and not is_suspect:
            await self._learn()
        self._settle(replica)

    def _lost(self, error: str) -> None:
        if self._replica.is_healthy or self._replica.last_error is None:
            logger.warning("replica %s (%s): %s", self._replica.replica_id, self._replica.url, error)
        self._replica.is_healthy = self._replica.is_hung = False
        self._replica.last_error = error
        self._is_identified = False  # what comes back may be another server
        self._replica.slice_block_tokens = None

    async def _learn(self) -> None:
        replica = self._replica
        cards = await self._prober.models()
        page = await self._prober.metrics_page()
        load = self._parse(page) if page is not None else None
        if load is not None:
            if replica.load is not None and replica.load.process_start != load.process_start:
                self._is_identified = False
                replica.slice_block_tokens = None
            replica.load = load
        if not cards and not self._is_identified and (info := await self._prober.tgi_info()) is not None:
            cards = {info.model: ModelCard(max_model_len=info.max_model_len)}
        if cards:
            replica.cards = cards
            replica.models = frozenset(self._configured.models if self._configured.models is not None else cards)
        if not replica.models:
            self._lost("it names no models at /v1/models, and none are configured for it")
            return
        if not self._is_identified:
            await self._identify(replica.cards, load.engine if load is not None else None)
        elif self._prefixes_due_s is not None and self._clock() >= self._prefixes_due_s:
            await self._look_at_prefixes()
        self._compare_capacity()
        if not replica.is_healthy:
            logger.info("replica %s (%s): %s, serves %s", replica.replica_id, replica.url, replica.kind, _list(replica))
        replica.is_healthy, replica.is_hung = True, False
        replica.last_error = None

    def _compare_capacity(self) -> None:
        """Say it once where more is configured than its KV cache holds: the cap is lower than what somebody set."""
        capacity_tokens, own_tokens = self._replica.kv_capacity_tokens, self._configured.max_in_flight_tokens
        if capacity_tokens != self._capacity_tokens:
            self._capacity_tokens = capacity_tokens
            if capacity_tokens is not None and own_tokens is not None and own_tokens > capacity_tokens:
                logger.warning(
                    "replica %s: max_in_flight_tokens: %d is more than its KV cache holds, so that the cap is %d",
                    self._replica.replica_id,
                    own_tokens,
                    capacity_tokens,
                )

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
            replica.base_model = info.model
            replica.described_capacity_tokens = info.kv_capacity_tokens
        if replica.kind in _MAY_TOKENIZE and await self._prober.has_tokenize(min(replica.models)):
            features.add(TOKENIZE)
        replica.features = frozenset(features)
        await self._look_at_prefixes()
        self._is_identified = True

    async def _look_at_prefixes(self) -> None:
        """Whether long prompts can be computed there in slices."""
        replica = self._replica
        self._prefixes_due_s = None
        if not self._slices:
            replica.whole_because = "the policy cuts nothing"
        elif replica.kind not in _MAY_SLICE:
            replica.whole_because = f"nothing is known of prefix caching in servers of kind {replica.kind}"
        elif TOKENIZE not in replica.features:
            replica.whole_because = "it has no /tokenize"
        else:
            found = await find_prefix_caching(self._prober, min(replica.models))
            replica.slice_block_tokens, replica.whole_because = found.block_tokens, found.why or None
            if found.may_change:
                self._prefixes_due_s = self._clock() + ASK_AGAIN_S
            how = (
                f"in slices, with blocks of {found.block_tokens} tokens"
                if found.block_tokens
                else f"whole: {found.why}"
            )
            logger.info("replica %s: long prompts go there %s", replica.replica_id, how)


def _list(replica: Replica) -> str:
    return ", ".join(sorted(replica.models))
