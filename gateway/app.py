"""The composition root: the only place where parts are made and put together.

`build_app` gives a raw ASGI callable. The hot routes are taken before FastAPI sees them; everything else is the admin
application's.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable

import httpx

from policies.config import build_fallback, build_policy
from policies.guarded import GuardedCore

from .access_log import AccessLog
from .admin import AdminState, build_admin_app
from .admin_access import AdminAccess
from .api import routes
from .attribution import Record
from .calling import Caller
from .config import GatewayConfig
from .config_errors import ConfigError
from .cors import Cors
from .disconnect import Message, Receive, Send
from .dispatcher import Dispatcher
from .drain import Drain
from .front import ConnectionBounds, Front
from .handler import Bounds, Handler
from .key_ring import KeyRing
from .metrics import Metrics
from .model_tokenizer import TokenizerLoadError
from .replicas import ReplicaPool
from .retry_budget import RetryBudget
from .state.memory import MemoryCapacity
from .timing_ring import TimingRing
from .tokens import TokenCounter, make_pool
from .unanswered import UnansweredCalls
from .upstream import Upstream, Upstreams
from .upstream_transport import UpstreamTransport

logger = logging.getLogger(__name__)


class Gateway:
    """A gateway and its parts, as an ASGI application. Its lifespan, or `start` and `aclose`, begins and ends it."""

    def __init__(
        self, config: GatewayConfig, *, clock: Callable[[], float], rng: random.Random, http: httpx.AsyncClient | None
    ) -> None:
        self.config = config
        self._owns_http = http is None
        # Probes and /tokenize go straight to the replicas, whatever proxies the environment names.
        self._http = http if http is not None else httpx.AsyncClient(transport=UpstreamTransport(), trust_env=False)
        self.core = GuardedCore(build_policy(config.policy.spec()), lambda: build_fallback(self.config.policy.spec()))
        self._capacity = MemoryCapacity()
        self.dispatcher = Dispatcher(self.core, clock=clock, capacity=self._capacity)
        self._unanswered = UnansweredCalls()
        self.pool = ReplicaPool(
            config,
            self._http,
            clock,
            self.dispatcher.replica_changed,
            on_hung=self._unanswered.give_up,
            listen=self._listen,
            on_removed=self.dispatcher.replica_removed,
        )
        self.tokens = TokenCounter(config.models, make_pool(clock), self._http, clock)
        self.upstreams = Upstreams(lambda url: _upstream(url, self.config))
        self.drain = Drain(grace_s=config.timeouts.drain_s, unready_s=config.timeouts.unready_s)
        self.front = Front(_connection_bounds(config), self.drain)
        self.keys = KeyRing(config.keys, clock, assumed_output_tokens=config.limits.assumed_output_tokens)
        self.access = AdminAccess(
            self.keys, needs_key=config.needs_admin_key, has_listener=config.admin.listen is not None
        )
        self._cors = _cors(config)
        self.ring = TimingRing(config.timing_ring)
        self.access_log = AccessLog(config.log.access)
        self.metrics = Metrics()
        self.metrics.objectives = config.policy.objectives.by_lane()
        self.metrics.bind(
            self.core,
            self.pool,
            num_counts_waiting=lambda: self.tokens.num_waiting,
            encoders=lambda: self.tokens.encoders,
            num_lines_dropped=lambda: self.access_log.num_dropped,
            keys=self.keys,
            front=self.front,
        )
        self._caller = Caller(
            max_attempts=config.limits.max_attempts,
            retries=_retry_budget(config),
            heartbeat_s=config.streams.heartbeat_s,
            pool=self.pool,
            upstreams=self.upstreams,
            unanswered=self._unanswered,
            counter=self.tokens,
            can_serve=self.core.can_serve,
            clock=clock,
        )
        self._handler = Handler(
            bounds=_bounds(config),
            pool=self.pool,
            counter=self.tokens,
            dispatcher=self.dispatcher,
            draining=self.drain,
            keys=self.keys,
            caller=self._caller,
            clock=clock,
            rng=rng,
            finished=self._finished,
        )
        self._admin = build_admin_app(
            AdminState(
                pool=self.pool,
                metrics=self.metrics,
                ring=self.ring,
                draining=self.drain,
                access=self.access,
                view=self.core.view,
                policy=self.core,
                started_at=int(time.time()),
            )
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI: requests, and the lifespan."""
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        if self._cors is not None:
            if self._cors.is_preflight(scope):
                await self._cors.answer(scope, send)
                return
            send = self._cors.wrap(scope, send)
        if scope["method"] == "HEAD":  # the server leaves the body out
            scope = {**scope, "method": "GET"}
        if (route := routes.find(scope)) is not None and not self.access.is_inside(scope):
            await self._handler(route, scope, receive, send)
        else:
            await self._admin(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:
            # What is wrong with what it was given says where by itself, and the server says that.
            if not isinstance(error, ConfigError | TokenizerLoadError):
                logger.exception("the gateway could not start")
            await self.aclose()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Open the log, load the tokenizers, begin probing. Raises what keeps the gateway from serving."""
        self.access_log.start()
        self._handler.start()
        await self.tokens.start()
        self.metrics.start()
        self.keys.start()
        self._capacity.start(self.dispatcher.capacity_granted)
        self.pool.start()

    async def aclose(self) -> None:
        """End every task and close every connection."""
        await self.pool.aclose()
        await self.keys.aclose()
        await self.metrics.aclose()
        await self.tokens.aclose()
        await self._capacity.aclose()
        self.dispatcher.close()
        self.upstreams.close()
        self.access_log.close()
        if self._owns_http:
            await self._http.aclose()

    async def reload(self, config: GatewayConfig) -> None:
        """From now on this configuration, but for what only a start reads (`reload.AT_START`); nothing running stops.

        Raises ConfigError or TokenizerLoadError, and changes nothing then.
        """
        before = self.config
        admin = config.admin.model_copy(update={"listen": before.admin.listen})
        fixed = {"listen": before.listen, "admin": admin, "timing_ring": before.timing_ring}
        config = config.model_copy(update=fixed)
        tokenizers = await self.tokens.load(config.models)
        keys = await self.keys.load(config.keys)
        access_log = AccessLog(config.log.access)
        access_log.start()
        # From here on nothing can fail, and nothing comes in between.
        self.config = config
        self.tokens.use(tokenizers)
        self.keys.use(keys, assumed_output_tokens=config.limits.assumed_output_tokens)
        self.access.needs_key = config.needs_admin_key
        self.front.bounds = _connection_bounds(config)
        self.drain.grace_s, self.drain.unready_s = config.timeouts.drain_s, config.timeouts.unready_s
        self._cors = _cors(config)
        self._handler.reconfigure(_bounds(config))
        self._caller.max_attempts, self._caller.retries = config.limits.max_attempts, _retry_budget(config)
        self._caller.heartbeat_s = config.streams.heartbeat_s
        self.metrics.objectives = config.policy.objectives.by_lane()
        if config.policy != before.policy:
            self.dispatcher.set_policy(build_policy(config.policy.spec()))
        kept = {replica.id: replica.url for replica in config.replicas} if config.timeouts == before.timeouts else {}
        for replica in before.replicas:
            if kept.get(replica.id) != replica.url and replica.id is not None:
                self.upstreams.retire(replica.id)
        self.pool.reconfigure(config)
        old_log, self.access_log = self.access_log, access_log
        access_log.num_dropped = old_log.num_dropped
        await asyncio.to_thread(old_log.close)

    def _listen(self, replica_id: str) -> Callable[[], bool]:
        """Begins to listen to a replica; what is returned says whether it has kept silent to calls that wait for it."""
        is_unanswered, heard_s = self._unanswered.listen(replica_id), self.upstreams.heard_s(replica_id)
        return lambda: is_unanswered() and self.upstreams.heard_s(replica_id) <= heard_s

    def _finished(self, record: Record) -> None:
        # Nobody could ask for the timing of a stranger's request, and strangers shall not push out others'.
        if record.key_id is not None or not self.keys.has_keys:
            self.ring.add(record)
        self.metrics.observe(record)
        self.access_log.write(record)


def _upstream(url: str, config: GatewayConfig) -> Upstream:
    timeouts = config.timeouts
    return Upstream(url, connect_s=timeouts.connect_s, first_byte_s=timeouts.first_byte_s, gap_s=timeouts.idle_s)


def _connection_bounds(config: GatewayConfig) -> ConnectionBounds:
    timeouts, limits = config.timeouts, config.limits
    return ConnectionBounds(
        max_connections=limits.max_connections,
        max_head_bytes=limits.max_head_bytes,
        max_headers=limits.max_headers,
        head_s=timeouts.head_s,
        send_s=timeouts.send_s,
    )


def _bounds(config: GatewayConfig) -> Bounds:
    timeouts, limits = config.timeouts, config.limits
    return Bounds(
        max_body_bytes=limits.max_body_bytes,
        max_json_depth=limits.max_json_depth,
        receive_s=timeouts.receive_s,
        queue_s=timeouts.queue_s,
    )


def _retry_budget(config: GatewayConfig) -> RetryBudget:
    return RetryBudget(ratio=config.limits.retry_ratio, min_per_s=config.limits.min_retries_per_s)


def _cors(config: GatewayConfig) -> Cors | None:
    return None if config.cors is None else Cors(config.cors.origins, config.cors.max_age_s)


def build_app(
    config: GatewayConfig,
    *,
    clock: Callable[[], float] = time.monotonic,
    rng: random.Random | None = None,
    http: httpx.AsyncClient | None = None,
) -> Gateway:
    """A gateway, not yet started.

    `clock` gives monotonic seconds, `rng` makes the request ids (unguessable unless it is given), `http` is used for
    probes and /tokenize, and stays the caller's to close.
    """
    return Gateway(config, clock=clock, rng=rng if rng is not None else random.SystemRandom(), http=http)
