"""The life of one hot request, from its head to the last byte sent: the only place that knows the order of things.

accept → tokenize → queue → connect → (engine) → relay. Whatever ends it, the scopes it is in give back what they hold.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from policies.types import Reason

from . import record_headers
from .api import openai
from .api.fields import RequestFields
from .api.openai_fields import TGI
from .api.routes import Route
from .attribution import Layer, Record
from .calling import Caller
from .context_length import check_length, exact_if_too_long, longest_prompt_tokens
from .disconnect import DIRECT, Client, Direct, Message, Receive, Send
from .dispatcher import Dispatcher, Place
from .errors import (
    ClientLeft,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    ResponseBroken,
    UnknownModel,
    UnservedRoute,
)
from .key_ring import KeyRing
from .keys import Key, presented
from .late_count import late_count
from .light import LightPlace
from .overload_errors import Overloaded
from .request import Request
from .request_id import RequestIds
from .sending import Sending
from .tokens import TokenCount
from .unpack import unpack

# For every request: see `policies.types`.
_OTHER: Final = Layer.OTHER
_QUEUE: Final = Layer.QUEUE
_TOKENIZE: Final = Layer.TOKENIZE

logger = logging.getLogger(__name__)

# nginx's status for a client that closed its connection: for the record only, nobody is there to read it.
CLIENT_LEFT_STATUS = 499


class Pool(Protocol):
    """What the handler asks the pool of replicas."""

    def all(self) -> list[Any]: ...
    def resolve(self, model: str | None) -> str | None: ...
    def only_model(self, feature: str) -> str | None: ...
    @property
    def default_model(self) -> str | None: ...


class Counter(Protocol):
    """Counts prompt tokens."""

    async def count(
        self, fields: RequestFields, model: str, replicas: Any, tenant: str, *, waits: bool
    ) -> TokenCount: ...


class Draining(Protocol):
    """Whether the gateway is shutting down; it is told of every request that is being served."""

    @property
    def is_refusing(self) -> bool: ...
    def serving(self, request: Client) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one request: bytes, seconds, levels of JSON."""

    max_body_bytes: int
    max_json_depth: int
    receive_s: float
    queue_s: float


class Handler:
    """Serves the hot routes. One object for the whole gateway; it keeps no state of a request.

    `finished` is called once for every request, with its closed record.
    """

    def __init__(
        self,
        *,
        bounds: Bounds,
        pool: Pool,
        counter: Counter,
        dispatcher: Dispatcher,
        draining: Draining,
        keys: KeyRing,
        caller: Caller,
        clock: Callable[[], float],
        rng: random.Random,
        finished: Callable[[Record], None],
    ) -> None:
        self._bounds = bounds
        self._pool = pool
        self._counter = counter
        self._dispatcher = dispatcher
        self._draining = draining
        self._keys = keys
        self._caller = caller
        self._clock = clock
        self._ids = RequestIds(rng)
        self._finished = finished
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Call on the loop that it serves on."""
        self._loop = asyncio.get_running_loop()

    def reconfigure(self, bounds: Bounds) -> None:
        """For requests that come from now on."""
        self._bounds = bounds

    async def __call__(self, route: Route, scope: Message, receive: Receive, send: Send) -> None:
        """An ASGI application for requests to this route."""
        record = Record(
            self._ids.next(),
            self._clock(),
            route.name,
            policy=self._dispatcher.core.policy_name,
        )
        direct: Direct | None = scope.get("extensions", {}).get(DIRECT)
        client = Client(receive, direct, loop=self._loop)
        try:
            with self._draining.serving(client):
                await self._serve(route, scope, client, send, direct, record)
        except ClientLeft:
            record.outcome, record.status = "client-left", CLIENT_LEFT_STATUS
            record.reason = client.left_because or record.reason
        except GatewayError as error:
            await self._refuse(route, error, record, send)
        except ResponseBroken:
            raise
        except asyncio.CancelledError:
            record.outcome = "failed"
            if (stopped := client.stopped_by()) is None:
                raise
            await self._refuse(route, stopped, record, send)
        except Exception as error:
            logger.exception("request %s failed inside the gateway", record.request_id)
            if record.status is not None:
                record.outcome = "failed"
                raise ResponseBroken("an answer broke off inside the gateway") from error
            await self._refuse(route, InternalError(), record, send)
        finally:
            record.finish(self._clock())
            self._finished(record)

    async def _refuse(self, route: Route, error: GatewayError, record: Record, send: Send) -> None:
        record.enter(_OTHER, self._clock())
        record.outcome, record.status = error.outcome, route.errors.status(error)
        if error.reason is not None:
            record.reason = error.reason
        if error.lane is not None:
            record.lane = error.lane
        body = route.errors.body(error)
        headers = [*error.headers(), (b"content-length", b"%d" % len(body)), *record_headers.headers(record)]
        await send({"type": "http.response.start", "status": record.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _serve(
        self, route: Route, scope: Message, client: Client, send: Send, direct: Direct | None, record: Record
    ) -> None:
        if scope["method"] != route.method:
            raise MethodNotAllowed(route.method)
        if self._draining.is_refusing:
            raise Overloaded(Reason.DRAINING, closes=True)
        bounds = self._bounds
        raw_headers = openai.raw_headers(scope)
        key = self._keys.admit(raw_headers, record)
        head, query = openai.read_head(raw_headers), openai.read_query(scope)
        if self._keys.has_keys:
            head, query = openai.withhold(head, query, presented(raw_headers))
        with self._keys.quota(key, record) as quota:
            body = await client.read_body(
                content_length=head.content_length, max_bytes=bounds.max_body_bytes, timeout_s=bounds.receive_s
            )
            with client:
                record.enter(_OTHER, self._clock())
                if head.is_packed:
                    body = await unpack(body, bounds.max_body_bytes)
                fields = route.read(body, raw_headers, bounds.max_json_depth)
                feature = fields.feature or route.feature
                record.streams = fields.stream
                record.declared_lane = key.declared_lane(head.lane, fields.priority)
                if head.first_token_within_s is not None:
                    record.first_token_by_s = record.arrival_s + head.first_token_within_s
                model, serving = self._resolve(route, fields.model, feature, key)
                record.model = model
                for adapter in fields.adapters:
                    key.check_model(adapter, adapter)
                counted = None
                if not route.is_light:
                    counted = await self._count(fields, model, serving, record, waits=key.limits_tokens)
                    quota.reserve(record.prompt_tokens or 0, fields.max_output_tokens)
                record.enter(_QUEUE, self._clock())
                request = self._request(fields, model, feature, len(body), record)
                sending = Sending(
                    client,
                    send,
                    None if direct is None else direct.write,
                    head,
                    body,
                    route,
                    raw_headers,
                    query,
                    feature,
                    fields.model,
                    is_restricted=key.models is not None,
                )
                del body, fields  # a large prompt is held no longer than it may have to be sent again
                with late_count(counted, record) as late, self._place(route, request) as place:
                    late.tell(place, request)
                    if place.admitted is not None:
                        record.lane, record.lane_why = place.admitted.lane, place.admitted.lane_why
                        record.own_lane = place.admitted.own_lane
                        record.predicted_output_tokens = place.admitted.predicted_output_tokens
                        if record.declared_lane not in (None, record.lane) or record.own_lane is not record.lane:
                            record.reason = record.lane_why
                    await self._caller.answer(sending, place, record)

    def _place(self, route: Route, request: Request) -> Place:
        return LightPlace(self._dispatcher, request, self._pool) if route.is_light else self._dispatcher.place(request)

    def _resolve(self, route: Route, asked: str | None, feature: str, key: Key) -> tuple[str, list[Any]]:
        """The model that is meant, and the replicas that serve it, available or not."""
        model = self._pool.resolve(asked or None)
        if model is None and not asked and feature == TGI:  # whose bodies name none
            model = self._pool.only_model(feature)
        replicas = self._pool.all()
        if model is not None:
            key.check_model(asked, model)
            serving = [replica for replica in replicas if model in replica.models]
            # Without features it isn't known yet what a replica can do, and waiting may help.
            unable = [replica for replica in serving if replica.features and feature not in replica.features]
            if serving and len(unable) == len(serving):
                raise UnservedRoute(route.path)
            return model, serving
        if not all(replica.models for replica in replicas):
            # A replica whose models aren't known yet may be the one.
            raise Overloaded(Reason.NO_REPLICA)
        names = {name for replica in replicas for name in replica.models if key.may_use(name)}
        raise UnknownModel(asked or self._pool.default_model, sorted(names))

    async def _count(
        self, fields: RequestFields, model: str, serving: list[Any], record: Record, *, waits: bool
    ) -> TokenCount:
        record.enter(_TOKENIZE, self._clock())
        counted = await self._counter.count(fields, model, serving, record.tenant, waits=waits)
        longest_tokens = None
        if counted.source == "local" or counted.exact is not None:
            longest_tokens = longest_prompt_tokens(fields, model, serving)
            counted = await exact_if_too_long(counted, longest_tokens)
        record.prompt_tokens, record.prompt_tokens_source = counted.prompt_tokens, counted.source
        record.notes[_TOKENIZE] = counted.source
        check_length(counted, longest_tokens, model)
        return counted

    def _request(self, fields: RequestFields, model: str, feature: str, body_bytes: int, record: Record) -> Request:
        deadline_s, by_s = record.arrival_s + self._bounds.queue_s, record.first_token_by_s
        if by_s is not None and by_s < deadline_s:
            deadline_s = by_s
        return Request(
            record.request_id,
            record.arrival_s,
            model,
            record.tenant,
            record.route,
            record.declared_lane,
            record.prompt_tokens or 0,
            fields.max_output_tokens,
            fields.stream,
            deadline_s,
            fields.num_choices,
            None,
            feature,
            body_bytes,
            by_s,
            fields.can_be_sliced,
        )
