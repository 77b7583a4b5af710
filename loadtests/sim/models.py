"""Engines to be simulated: those that were measured and fitted, and files with others."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import LoadtestError
from .model import ReplicaModel
from .step_time import StepTime

_COUNTS = [field.name for field in fields(ReplicaModel) if field.name not in ("step_time", "enable_prefix_caching")]


def bundled_models() -> tuple[str, ...]:
    """Names of the fitted engines that come with the package."""
    folder = resources.files(__package__) / "models"
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def load_model(name_or_path: str) -> ReplicaModel:
    """A bundled engine by name, or a file that `calibrate-sim` wrote. Raises `LoadtestError` naming file and key."""
    if name_or_path in bundled_models():
        text = (resources.files(__package__) / "models" / f"{name_or_path}.json").read_text(encoding="utf-8")
    else:
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise LoadtestError(
                f"engine {name_or_path}: neither a file that can be read nor bundled: {', '.join(bundled_models())}"
            ) from error
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise LoadtestError(f"engine {name_or_path}: not JSON: {error}") from error
    try:
        return _model(raw)
    except LoadtestError as error:
        raise LoadtestError(f"engine {name_or_path}: {error}") from error


def model_to_dict(model: ReplicaModel) -> dict[str, Any]:
    """Plain values that `load_model` reads."""
    return asdict(model)


def _model(raw: Any) -> ReplicaModel:
    if not isinstance(raw, Mapping):
        raise LoadtestError("not a table")
    known = [field.name for field in fields(ReplicaModel)]
    for key, value in raw.items():
        if key == "about":
            continue
        if key not in known:
            raise LoadtestError(f"{key}: unknown; allowed: {', '.join(known)}")
        if key in _COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise LoadtestError(f"{key}: {value!r} must be a whole number from 1")
    for key in ("step_time", "num_blocks"):
        if key not in raw:
            raise LoadtestError(f"{key}: missing")
    if not isinstance(raw["step_time"], Mapping) or not isinstance(raw.get("enable_prefix_caching", True), bool):
        raise LoadtestError("step_time must be a table, enable_prefix_caching true or false")
    values = {key: value for key, value in raw.items() if key not in ("about", "step_time")}
    return ReplicaModel(step_time=StepTime.from_dict(raw["step_time"]), **values)
