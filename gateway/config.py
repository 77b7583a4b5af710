"""What a gateway is told: frozen models, and errors that say which key, which value and what is allowed.

A configuration is a YAML file (`load_config`) or the same structure as plain data (`parse_config`). Nothing is dropped,
clamped or coerced: an unknown key, a key given twice, "8080" where a number belongs are errors, and all of a file's
errors are listed at once. Relative paths are relative to the file's folder.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from .config_errors import ConfigError, Problem, Problems, describe
from .config_sections import (
    AdminConfig,
    CorsConfig,
    Limits,
    Listen,
    LogConfig,
    ModelConfig,
    PolicyConfig,
    Probes,
    ReplicaConfig,
    Section,
    Streams,
    Timeouts,
)
from .config_values import Count, KeyFilePath, Name
from .config_yaml import read_yaml


class GatewayConfig(Section):
    """The whole configuration of one gateway."""

    listen: Listen = Listen()
    keys: KeyFilePath | None = None
    """File of API keys, made by `tailgate keys create`; None: nobody needs one, and clients' own go to the replicas."""
    admin: AdminConfig = AdminConfig()
    replicas: Annotated[tuple[ReplicaConfig, ...], Field(strict=False)]
    models: Annotated[tuple[ModelConfig, ...], Field(strict=False)] = ()
    default_model: Name | None = None
    """Model (or alias) of a request that names none; None makes that an error of the request."""
    only_model_is_default: bool = False
    """Whether the only model there is, adapters apart, is the one of a request that names none."""
    policy: PolicyConfig = PolicyConfig()
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    cors: CorsConfig | None = None
    """None: no page of another origin may."""
    streams: Streams = Streams()
    probes: Probes = Probes()
    log: LogConfig = LogConfig()
    timing_ring: Count = 10_000
    """How many finished requests /v1/requests/{id}/timing remembers."""

    @field_validator("replicas")
    @classmethod
    def _distinct_replicas(cls, replicas: tuple[ReplicaConfig, ...]) -> tuple[ReplicaConfig, ...]:
        if not replicas:
            raise ValueError("must have at least one replica")
        named = tuple(
            replica if replica.id is not None else replica.model_copy(update={"id": f"r{position}"})
            for position, replica in enumerate(replicas, start=1)
        )
        ids = _repeated([((index, "id"), replica.id) for index, replica in enumerate(named)])
        urls = _repeated([((index, "url"), replica.url) for index, replica in enumerate(named)])
        if ids or urls:
            raise Problems([*ids, *urls])
        return named

    @field_validator("models")
    @classmethod
    def _distinct_models(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names: list[tuple[tuple[int | str, ...], str | None]] = []
        for index, model in enumerate(models):
            names.append(((index, "name"), model.name))
            names.extend(((index, "aliases", place), alias) for place, alias in enumerate(model.aliases))
        if repeated := _repeated(names):
            raise Problems(repeated)
        return models

    @model_validator(mode="after")
    def _admins_can_be(self) -> Self:
        listen = self.admin.listen
        problems = []
        if self.admin.key_required and self.keys is None:
            problems.append(Problem(("admin", "key_required"), True, "needs a file of keys: `keys`"))
        if listen is not None and listen.port and listen.port == self.listen.port:
            problems.append(Problem(("admin", "listen", "port"), listen.port, "must differ from `listen.port`"))
        if problems:
            raise Problems(problems)
        return self

    @property
    def needs_admin_key(self) -> bool:
        """Whether metrics and other callers' timings need a key with `admin`."""
        if self.admin.key_required is not None:
            return self.admin.key_required
        return self.keys is not None and self.admin.listen is None

    @model_validator(mode="after")
    def _models_are_served(self) -> Self:
        listed = {name for replica in self.replicas for name in replica.models or ()}
        if any(replica.models is None for replica in self.replicas):
            return self  # they are asked what they serve
        problems = [
            Problem(("models", index, "name"), model.name, f"no replica lists it; listed: {', '.join(sorted(listed))}")
            for index, model in enumerate(self.models)
            if model.name not in listed
        ]
        if problems:
            raise Problems(problems)
        return self

    @model_validator(mode="after")
    def _known_default_model(self) -> Self:
        if self.default_model is None:
            return self
        if self.only_model_is_default:
            allowed = "stands beside `only_model_is_default`: give one of them"
            raise Problems([Problem(("default_model",), self.default_model, allowed)])
        known = {name for model in self.models for name in (model.name, *model.aliases)}
        known |= {name for replica in self.replicas for name in replica.models or ()}
        # Where nothing is listed the names come from the replicas, and only they can tell.
        is_complete = bool(self.models) or all(replica.models is not None for replica in self.replicas)
        if is_complete and self.default_model not in known:
            allowed = f"must be a model or an alias of the configuration: {', '.join(sorted(known))}"
            raise Problems([Problem(("default_model",), self.default_model, allowed)])
        return self


def _repeated(named: list[tuple[tuple[int | str, ...], str | None]]) -> list[Problem]:
    """A problem for every value but the first of those that are the same."""
    seen: Counter[str | None] = Counter()
    problems = []
    for path, value in named:
        seen[value] += 1
        if seen[value] > 1:
            problems.append(Problem(path, value, "is used before: it must be unique"))
    return problems


def parse_config(data: object, *, source: str, base_dir: Path | None = None) -> GatewayConfig:
    """The configuration that plain data describes. `source` names it in errors.

    Raises `ConfigError` with every problem found.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(source, ["must be a mapping with the keys: " + ", ".join(GatewayConfig.model_fields)])
    try:
        return GatewayConfig.model_validate(dict(data), context={"base_dir": base_dir})
    except ValidationError as error:
        raise ConfigError(source, describe(error, GatewayConfig)) from None


def load_config(path: Path) -> GatewayConfig:
    """Reads a YAML file. Raises `ConfigError` with every problem found."""
    return parse_config(read_yaml(path), source=str(path), base_dir=path.resolve().parent)
