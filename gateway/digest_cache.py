"""What was found out about texts, by their digests: no text is kept."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

V = TypeVar("V")

ENTRY_BYTES = 256
"""A digest, a small value and their place in the table: 190 to 240 bytes, measured."""
_DIGEST_BYTES = 16


def digest(data: bytes, scope: bytes) -> bytes:
    """Of these bytes within a scope: what one scope learned tells another nothing, not even by how long it takes."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=scope).digest()


def scope_of(*names: str) -> bytes:
    """The scope of these names together."""
    return hashlib.blake2b("\0".join(names).encode(), digest_size=_DIGEST_BYTES).digest()


class DigestCache(Generic[V]):
    """The most recently used, in at most `max_bytes`. Looked up from any thread, changed on the event loop only."""

    def __init__(self, max_bytes: int) -> None:
        self._max_entries = max(1, max_bytes // ENTRY_BYTES)
        self._entries: OrderedDict[bytes, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> V | None:
        """Leaves the order as it is: say `used` on the loop."""
        return self._entries.get(key)

    def used(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if key in self._entries:
                self._entries.move_to_end(key)

    def put(self, key: bytes, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
