"""The parts of a configuration: frozen, strict and closed, each key with its unit and its default."""

import os
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from policies.config import PolicyConfigError, PolicySpec, build_policy
from policies.objectives import Objective
from policies.types import Lane

from .config_errors import Problem, Problems
from .config_values import (
    Count,
    Features,
    HeaderValue,
    HeaderVariable,
    Name,
    Names,
    Origin,
    Seconds,
    TokenizerPath,
    Url,
    log_target,
)

ReplicaKind = Literal["auto", "tailgate-backend", "vllm", "tgi", "sglang", "llama.cpp", "openai"]
LogLevel = Literal["debug", "info", "warning", "error"]

DEFAULT_POLICY = PolicySpec()


class Section(BaseModel):
    """Frozen, strict, closed: what every part of the configuration has in common."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class Listen(Section):
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; 0.0.0.0 or :: for every interface."""
    port: int = Field(default=8080, ge=0, le=65535)
    """0 picks a free port."""


class AdminListen(Listen):
    port: int = Field(default=9090, ge=0, le=65535)
    """0 picks a free port."""


class AdminConfig(Section):
    """Where metrics and the timing of all requests are read, and by whom."""

    listen: AdminListen | None = None
    """An address of their own; None: beside the other routes."""
    key_required: bool | None = None
    """Whether a key with `admin` is needed; None: where there are keys and no address of their own."""


class ReplicaConfig(Section):
    """One upstream inference server."""

    url: Url
    id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Short name in headers, metrics and logs; r1, r2 … by position where not given."""
    kind: ReplicaKind = "auto"
    models: Names | None = None
    """Names it serves; probed at /v1/models where not given."""
    also_serves: Features = ()
    """Routes it serves besides those of its kind, such as "messages" of a plain OpenAI server."""
    max_in_flight_tokens: Count | None = None
    """Cap of prompt + predicted output tokens of its running requests, lowered to the KV cache's capacity where the
    replica tells it; None: that, or else the admission policy's figure."""
    max_in_flight_requests: Count | None = None
    """Cap of its running requests, such as the engine's largest batch; None: tokens alone decide."""
    max_prefill_tokens: Count | None = None
    """No further request starts while this many prompt tokens wait for their first token; None: the admission policy's
    figure. Good: what the engine computes in one to four steps."""
    authorization: HeaderValue | None = None
    """Authorization header sent to this replica instead of the client's; None passes the client's through."""
    authorization_env: HeaderVariable | None = None
    """Environment variable that holds that header, in place of `authorization`; read at the start."""
    priority_scheduling: bool = False
    """Whether it runs with --scheduling-policy priority (vLLM), so that a request's priority is worth sending."""

    @model_validator(mode="after")
    def _has_one_authorization(self) -> Self:
        if self.authorization is not None and self.authorization_env is not None:
            allowed = "stands beside `authorization`: give one of them"
            raise Problems([Problem(("authorization_env",), self.authorization_env, allowed)])
        return self

    @property
    def authorization_header(self) -> str | None:
        """The header's value, wherever it is from: a secret."""
        if self.authorization_env is not None:
            return os.environ.get(self.authorization_env)
        return None if self.authorization is None else self.authorization.get_secret_value()


class ModelConfig(Section):
    """What is known about a model beforehand. Models that aren't listed are served too, as the replicas name them."""

    name: Name
    aliases: Names = ()
    tokenizer: TokenizerPath | None = None
    """Folder with tokenizer.json (and tokenizer_config.json or chat_template.jinja for chat), for exact counts."""


class ObjectiveConfig(Section):
    """What the requests of a lane are to be served within; None: no such objective."""

    ttft_s: Seconds | None = None
    """Arrival here → first token sent on."""
    tpot_s: Seconds | None = None
    """Each output token after the first, on average."""
    e2e_s: Seconds | None = None
    """Arrival here → end of the answer."""


class ObjectivesConfig(Section):
    """By lane. What met them all is counted (goodput), and `slack-edf` orders by them."""

    interactive: ObjectiveConfig = ObjectiveConfig()
    standard: ObjectiveConfig = ObjectiveConfig()
    long: ObjectiveConfig = ObjectiveConfig()
    overlong: ObjectiveConfig = ObjectiveConfig()
    background: ObjectiveConfig = ObjectiveConfig()

    def by_lane(self) -> dict[Lane, Objective]:
        """Of the lanes that have any."""
        given: dict[Lane, ObjectiveConfig] = {lane: getattr(self, lane.value) for lane in Lane}
        return {
            lane: Objective(one.ttft_s, one.tpot_s, one.e2e_s)
            for lane, one in given.items()
            if one != ObjectiveConfig()
        }


class PolicyConfig(Section):
    """Which policies decide; the names and their options are those of `policies`."""

    ordering: str = DEFAULT_POLICY.ordering
    flows: str = DEFAULT_POLICY.flows
    lanes: str = DEFAULT_POLICY.lanes
    admission: str = DEFAULT_POLICY.admission
    shedding: str = DEFAULT_POLICY.shedding
    routing: str = DEFAULT_POLICY.routing
    slicing: str = DEFAULT_POLICY.slicing
    objectives: ObjectivesConfig = ObjectivesConfig()
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def spec(self) -> PolicySpec:
        return PolicySpec(
            ordering=self.ordering,
            flows=self.flows,
            lanes=self.lanes,
            admission=self.admission,
            shedding=self.shedding,
            routing=self.routing,
            slicing=self.slicing,
            options=self.options,
            objectives=self.objectives.by_lane(),
        )

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        try:
            build_policy(self.spec())
        except PolicyConfigError as error:
            problems = [Problem((problem.key,), problem.value, problem.allowed) for problem in error.problems]
            raise Problems(problems) from error
        return self


class Timeouts(Section):
    """Bounds on waiting, seconds. There is none on a whole generation."""

    connect_s: Seconds = 5.0
    first_byte_s: Seconds = 600.0
    """Request sent → the replica's status line."""
    idle_s: Seconds = 300.0
    """Gap between two pieces of an answer."""
    queue_s: Seconds = 600.0
    """Waiting for dispatch."""
    head_s: Seconds = 15.0
    """Receiving a request's head."""
    receive_s: Seconds = 60.0
    """Receiving a request's body."""
    send_s: Seconds = 60.0
    """How long a client may take nothing of an answer that waits for it."""
    drain_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """Grace for running requests after SIGTERM."""
    unready_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """How long of it new requests are still taken while readiness is gone, for load balancers to notice."""

    @model_validator(mode="after")
    def _unready_is_part_of_drain(self) -> Self:
        if self.unready_s > self.drain_s:
            allowed = f"must be at most drain_s, which is {self.drain_s:g}"
            raise Problems([Problem(("unready_s",), self.unready_s, allowed)])
        return self


class Limits(Section):
    max_connections: Count = 10_000
    """Connections of clients at the same time; idle ones make room for new ones."""
    max_head_bytes: int = Field(default=32 * 1024, ge=1024)
    """Of a request's first line and headers."""
    max_headers: int = Field(default=128, ge=8)
    max_body_bytes: Count = 8 * 1024 * 1024
    max_json_depth: int = Field(default=64, ge=1, le=200)
    """The JSON library in use can't write deeper than 254 levels."""
    max_attempts: Count = 2
    """Replicas tried for one request, the first included; only before the first byte of an answer."""
    assumed_output_tokens: Count = 1024
    """What a request without max_tokens takes of its key's token limits while it runs; afterwards what it used."""
    retry_ratio: float = Field(default=0.2, ge=0, le=1)
    """Retries in all, as a share of recent requests …"""
    min_retries_per_s: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """… and what is allowed besides."""


class CorsConfig(Section):
    """Which web pages may call the gateway from a browser."""

    origins: Annotated[tuple[Origin, ...], Field(strict=False, min_length=1)]
    """Such as https://chat.example.com; "*" is any."""
    max_age_s: int = Field(default=600, ge=0)
    """How long browsers may remember what is allowed."""


class Streams(Section):
    heartbeat_s: Seconds | None = None
    """A comment goes into a stream after so long without a byte of it, for clients and load balancers that close what
    is silent; None: never, since comments are more than some clients understand."""


class Probes(Section):
    interval_s: Seconds = 5.0
    timeout_s: Seconds = 2.0


class LogConfig(Section):
    level: LogLevel = "info"
    access: str | None = Field(default="stderr", min_length=1)
    """Where the access log (a JSON line per request) goes: "stderr", a file, or null for nowhere."""

    @field_validator("access")
    @classmethod
    def _resolve(cls, value: str | None, info: ValidationInfo) -> str | None:
        return log_target(value, info)
