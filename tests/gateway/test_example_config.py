"""The example that is the reference: complete, and true to the defaults."""

import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from gateway.config import GatewayConfig, load_config, parse_config
from policies.config import ALWAYS, ROLES, PolicySpec, effective_options

EXAMPLE = Path(__file__).parents[2] / "deploy" / "gateway.yaml"


def sections(annotation: object) -> Iterator[type[BaseModel]]:
    """The sections inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from sections(argument)


def missing(section: type[BaseModel], data: Any, path: str = "") -> Iterator[str]:
    """Keys of a section, and of those in it, that the data doesn't write down."""
    for name, field in section.model_fields.items():
        if name not in data:
            yield f"{path}{name}"
            continue
        value = data[name][0] if isinstance(data[name], list) and data[name] else data[name]
        for inner in sections(field.annotation):
            if isinstance(value, Mapping):
                yield from missing(inner, value, f"{path}{name}.")


def test_the_example_has_every_key() -> None:
    """Of every section; sections that are null by default are shown beside."""
    text = EXAMPLE.read_text()
    assert list(missing(GatewayConfig, yaml.safe_load(text))) == []
    assert "{host: 127.0.0.1, port: 9090}" in text


def test_the_example_has_every_part_and_option() -> None:
    """All parts are named; those of the chosen ones are written down, those of others at least mentioned."""
    text = EXAMPLE.read_text()
    parts = [registry.get(name) for registry in ROLES.values() for name in registry.names()]
    for part in [*parts, *ALWAYS]:
        assert part.name in text, f"deploy/gateway.yaml says nothing of {part.name}"
        for option in part.options:
            assert f"{option}:" in text, f"{part.name}.{option}"


def test_the_example_is_at_the_defaults() -> None:
    """So what it says of them is true, and leaving a key out is the same as leaving it as it is."""
    example = load_config(EXAMPLE)
    plain = parse_config({"replicas": [{"url": "http://127.0.0.1:8000"}], "models": [{"name": "my-model"}]}, source="")
    for name in GatewayConfig.model_fields:
        if name != "policy":
            assert getattr(example, name) == getattr(plain, name), name
    assert example.policy.spec().name == plain.policy.spec().name
    given = {part: options for part, options in effective_options(PolicySpec()).items() if options}
    assert example.policy.options == given


def test_what_is_missing_would_be_found() -> None:
    """The search goes into sections and lists of them."""
    found = list(missing(GatewayConfig, {"replicas": [{"url": "x"}], "timeouts": {}}))
    assert {"listen", "replicas.kind", "timeouts.idle_s"} <= set(found)
