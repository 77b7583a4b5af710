"""The KV cache of a simulated replica: how many blocks are held, and which prefixes are still there."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile

ChunkKey = Hashable
"""Names a chunk of a prompt together with everything before it: equal keys, equal prefix."""


class KvPool:
    """Counts blocks; content is known by chunks of `chunk_blocks` blocks, the grain of a trace's prefix ids.

    As the bundled engine's block manager and vLLM's: a block is held (counted), idle (nobody holds it, its chunk may
    be taken up again or evicted, least recently used first) or blank.
    """

    def __init__(self, num_blocks: int, *, chunk_blocks: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.chunk_blocks = chunk_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self.num_evicted_chunks = 0
        self._blank = num_blocks
        self._holders: dict[ChunkKey, int] = {}  # of every indexed chunk; 0 while idle
        self._idle: OrderedDict[ChunkKey, None] = OrderedDict()

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, idle ones included."""
        return self._blank + len(self._idle) * self.chunk_blocks

    def match(self, keys: Iterable[ChunkKey]) -> list[ChunkKey]:
        """The longest prefix of these chunks that is in the cache. Takes nothing."""
        return list(takewhile(self._holders.__contains__, keys)) if self.enable_prefix_caching else []

    def num_idle(self, keys: Iterable[ChunkKey]) -> int:
        """How many of these indexed chunks nobody holds."""
        return sum(not self._holders[key] for key in keys)

    def num_exclusive(self, keys: Iterable[ChunkKey]) -> int:
        """How many of these chunks have one holder."""
        return sum(self._holders[key] == 1 for key in keys)

    def take(self, keys: Iterable[ChunkKey]) -> None:
        """Hold chunks that `match` returned, one more time each."""
        for key in keys:
            if not self._holders[key]:
                del self._idle[key]
            self._holders[key] += 1

    def allocate(self, num_blocks: int) -> None:
        """Hold so many blocks more, evicting idle chunks when blank ones run out. RuntimeError without enough."""
        if num_blocks > self.free_blocks:
            raise RuntimeError(f"{num_blocks} blocks wanted, {self.free_blocks} of {self.num_blocks} are free")
        while self._blank < num_blocks:
            key, _ = self._idle.popitem(last=False)
            del self._holders[key]
            self.num_evicted_chunks += 1
            self._blank += self.chunk_blocks
        self._blank -= num_blocks

    def register(self, key: ChunkKey) -> bool:
        """A held chunk has been computed. False: the cache has its content already; these stay nameless."""
        if not self.enable_prefix_caching or key in self._holders:
            return False
        self._holders[key] = 1
        return True

    def release(self, keys: Sequence[ChunkKey], nameless_blocks: int) -> None:
        """Let go of these chunks (the deepest becomes evictable first) and of so many nameless blocks."""
        self._blank += nameless_blocks
        for key in reversed(keys):
            self._holders[key] -= 1
            if not self._holders[key]:
                self._idle[key] = None

    def check_integrity(self, held_blocks: int) -> None:
        """Raises AssertionError unless the count fits what sequences say that they hold, shared chunks once."""
        assert self._blank >= 0
        assert {key for key, holders in self._holders.items() if not holders} == set(self._idle)
        assert self.free_blocks + held_blocks == self.num_blocks
