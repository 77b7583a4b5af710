"""A YAML file as plain data, with a key that is given twice being an error (PyYAML keeps the last one silently)."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from .config_errors import ConfigError

MERGE_TAG = "tag:yaml.org,2002:merge"


def read_yaml(path: Path) -> object:
    """The file's content, {} for an empty one. Raises `ConfigError`: unreadable, not YAML, or with repeated keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), [f"can't be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), ["can't be read: it isn't text in UTF-8"]) from error
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return {}
            # On the nodes, not while constructing: merge keys ("<<") add keys to them, which may repeat.
            if repeated := list(_repeated_keys(node, set())):
                raise ConfigError(str(path), repeated)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        # Without the line itself, which may hold a secret.
        mark = error.problem_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise ConfigError(str(path), [f"isn't YAML: {error.problem}{where}"]) from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(str(path), [f"isn't YAML: {error.reason} (character {error.position + 1})"]) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2026-99-99
        raise ConfigError(str(path), [f"isn't YAML: {error}"]) from None


def _repeated_keys(node: yaml.Node, visited: set[int]) -> Iterator[str]:
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item, visited)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE_TAG:
                if key.value in seen:
                    yield f"{key.value} (line {key.start_mark.line + 1}): is given twice: a key must be unique"
                seen.add(key.value)
            yield from _repeated_keys(value, visited)
