"""Key files for tests."""

import json
from pathlib import Path
from typing import Any

from gateway.key_file import KeyFile, new_key_file, parse_key_file


def write_keys(path: Path, **entries: dict[str, Any]) -> None:
    """A file with a key for each name: `sk-NAME`, with the name as its id and the tenant `t-NAME`."""
    path.write_bytes(key_file(**entries).text())


def key_file(**entries: dict[str, Any]) -> KeyFile:
    """The same, not written."""
    file = new_key_file()
    keys = [
        {"id": name, "tenant": f"t-{name}", "hash": file.digest_of(f"sk-{name}"), **entry}
        for name, entry in entries.items()
    ]
    return parse_key_file(json.dumps({"salt": file.salt, "keys": keys}).encode(), source="test")


def bearer(name: str) -> tuple[str, str]:
    """The header of a client that has this key."""
    return ("authorization", f"Bearer sk-{name}")
