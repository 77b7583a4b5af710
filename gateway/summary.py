"""A configuration in words, as `tailgate check` shows it."""

from policies.config import effective_options

from .config import GatewayConfig
from .config_sections import ModelConfig, PolicyConfig, ReplicaConfig


def summary(config: GatewayConfig) -> str:
    """The resolved configuration, a line per thing, without secrets."""
    timeouts, limits = config.timeouts, config.limits
    lines = [f"listen    http://{config.listen.host}:{config.listen.port}"]
    lines += [f"keys      {config.keys}" if config.keys is not None else "keys      none: nobody needs one"]
    lines += [f"admin     {_admin(config)}"]
    lines += [f"replica   {_replica(replica)}" for replica in config.replicas]
    lines += [f"model     {_model(model)}" for model in config.models]
    fallback = "the only model there is" if config.only_model_is_default else "none: requests must name a model"
    lines += [f"default   {config.default_model or fallback}"]
    lines += [f"policy    {config.policy.spec().name}"]
    lines += [f"objective {objective}" for objective in _objectives(config.policy)]
    lines += [f"option    {option}" for option in _options(config.policy)]
    lines += [
        f"timeouts  connect {timeouts.connect_s:g} s, first byte {timeouts.first_byte_s:g} s, "
        f"idle {timeouts.idle_s:g} s, queue {timeouts.queue_s:g} s, receive {timeouts.receive_s:g} s, "
        f"drain {timeouts.drain_s:g} s, of which {timeouts.unready_s:g} s still take new requests",
        f"streams   {_streams(config)}",
        f"clients   at most {limits.max_connections} connections; head within {timeouts.head_s:g} s, "
        f"{limits.max_head_bytes} bytes, {limits.max_headers} headers; nothing taken for {timeouts.send_s:g} s",
        f"limits    body {limits.max_body_bytes} bytes, JSON depth {limits.max_json_depth}, "
        f"attempts {limits.max_attempts}, retries up to {limits.retry_ratio:.0%} of requests and "
        f"{limits.min_retries_per_s:g}/s besides",
        f"cors      {', '.join(config.cors.origins) if config.cors is not None else 'none: no web page may call'}",
        f"probes    every {config.probes.interval_s:g} s, within {config.probes.timeout_s:g} s",
        f"log       {config.log.level}; access log: {config.log.access or 'none'}",
    ]
    return "\n".join(lines)


def _objectives(policy: PolicyConfig) -> list[str]:
    """A line per lane."""
    given = policy.objectives.by_lane()
    return [
        f"{lane.value}  " + ", ".join(f"{name} {s:g}" for name, s in objective._asdict().items() if s is not None)
        for lane, objective in given.items()
    ] or ["none: goodput isn't counted but for requests with a deadline of their own"]


def _options(policy: PolicyConfig) -> list[str]:
    """What is in effect, those that were given marked."""
    lines = []
    for part, options in effective_options(policy.spec()).items():
        for key, value in options.items():
            mark = " (given)" if key in policy.options.get(part, {}) else ""
            lines.append(f"{part}.{key} = {'null' if value is None else value}{mark}")
    return lines


def _admin(config: GatewayConfig) -> str:
    listen = config.admin.listen
    where = "beside the other routes" if listen is None else f"http://{listen.host}:{listen.port}"
    return f"{where}, {'with an admin key' if config.needs_admin_key else 'without a key'}"


def _streams(config: GatewayConfig) -> str:
    every_s = config.streams.heartbeat_s
    return "nothing is put into them" if every_s is None else f"a comment after {every_s:g} s of silence"


def _replica(replica: ReplicaConfig) -> str:
    parts = [f"{replica.id}  {replica.url}  kind {replica.kind}"]
    parts += ["models " + (", ".join(replica.models) if replica.models is not None else "probed")]
    if replica.also_serves:
        parts += ["also serves " + ", ".join(replica.also_serves)]
    if replica.max_in_flight_tokens is not None:
        parts += [f"at most {replica.max_in_flight_tokens} tokens in flight"]
    if replica.max_in_flight_requests is not None:
        parts += [f"at most {replica.max_in_flight_requests} requests in flight"]
    if replica.max_prefill_tokens is not None:
        parts += [f"at most {replica.max_prefill_tokens} prefill tokens"]
    if replica.authorization_env is not None:
        parts += [f"own authorization, from {replica.authorization_env}"]
    elif replica.authorization is not None:
        parts += ["own authorization"]
    if replica.priority_scheduling:
        parts += ["priority scheduling"]
    return ", ".join(parts)


def _model(model: ModelConfig) -> str:
    parts = [model.name]
    if model.aliases:
        parts += ["also " + ", ".join(model.aliases)]
    parts += [f"tokenizer {model.tokenizer}" if model.tokenizer is not None else "tokens counted by replica or bytes"]
    return ", ".join(parts)
