"""Who holds which block of the paged KV cache, and which blocks hold a prefix that may be used again.

The tensors live in the runner; here is only the accounting. A block is in one of three states: held (by one or more
block tables, counted), idle (nobody holds it, its content is in the prefix index and may be taken back or evicted),
or blank (nobody holds it, nothing worth keeping).
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b

_DIGEST_BYTES = 16


class KVCacheError(Exception):
    """The accounting is broken: a block taken, freed or counted wrongly. A bug, never a full cache."""


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


def root_hash(*, salt: str | None = None, adapter: str | None = None) -> bytes:
    """The hash that a chain of blocks starts from.

    Requests share blocks only when salt and adapter are equal. None, "" and every other value differ, and no salt
    can imitate an adapter: each part is preceded by its kind and length.
    """
    root = blake2b(digest_size=_DIGEST_BYTES, person=b"tailgate-kv-1")
    for kind, value in ((b"s", salt), (b"a", adapter)):
        if value is not None:
            encoded = value.encode()
            root.update(kind + len(encoded).to_bytes(8, "big") + encoded)
    return root.digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full block, given the hash of all that comes before it."""
    return blake2b(array("q", token_ids).tobytes(), key=parent, digest_size=_DIGEST_BYTES).digest()


class BlockManager:
    """Counts references to `num_blocks` blocks of `block_size` tokens and keeps the prefix index."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache needs blocks: num_blocks={num_blocks}, block_size={block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._blank: deque[int] = deque(range(num_blocks))
        # Oldest first: the next to be evicted.
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, those with cached content included."""
        return len(self._blank) + len(self._idle)

    @property
    def held_blocks(self) -> int:
        """Blocks that at least one table holds."""
        return self.num_blocks - self.free_blocks

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest indexed prefix of a chain of hashes. Takes nothing."""
        blocks: list[int] = []
        for key in hashes:
            block = self._index.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def count_idle(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds."""
        return sum(self._references[block] == 0 for block in blocks)

    def count_exclusive(self, table: Iterable[int]) -> int:
        """How many blocks of a table no other table holds."""
        return sum(self._references[block] == 1 for block in table)

    def take(self, blocks: Iterable[int]) -> None:
        """Hold cached blocks that `match` returned, one more time each."""
        for block in blocks:
            if self._references[block] == 0:
                if block not in self._idle:
                    raise KVCacheError(f"block {block} is neither held nor cached")
                del self._idle[block]
            self._references[block] += 1

    def allocate(self, num_blocks: int) -> list[int]:
        """Hold `num_blocks` new blocks, evicting the least recently used cached ones when blank ones run out.

        Raises `OutOfBlocksError`, and takes nothing, when fewer are free.
        """
        if num_blocks > self.free_blocks:
            raise OutOfBlocksError(f"{num_blocks} blocks wanted, {self.free_blocks} of {self.num_blocks} are free")
        blocks: list[int] = []
        for _ in range(num_blocks):
            block = self._blank.popleft() if self._blank else self._evict()
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def release(self, table: Sequence[int]) -> None:
        """Let go of a table's blocks. The deepest becomes evictable first: a prefix is worth more than what follows."""
        for block in reversed(table):
            if self._references[block] == 0:
                raise KVCacheError(f"block {block} is freed twice")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._hashes[block] is None:
                self._blank.append(block)
            else:
                self._idle[block] = None

    def register(self, block: int, key: bytes) -> None:
        """Index a held, fully computed block. The first block with a content stays the indexed one."""
        if self._references[block] == 0:
            raise KVCacheError(f"block {block} is indexed but not held")
        if not self.enable_prefix_caching or key in self._index:
            return
        if self._hashes[block] is not None:
            raise KVCacheError(f"block {block} is indexed under two hashes")
        self._index[key] = block
        self._hashes[block] = key

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise `KVCacheError` unless counts, lists and index agree with each other and with all live `tables`."""
        expected = [0] * self.num_blocks
        for table in tables:
            if len(set(table)) != len(table):
                raise KVCacheError(f"a table holds a block twice: {list(table)}")
            for block in table:
                expected[block] += 1
        if expected != self._references:
            wrong = [block for block in range(self.num_blocks) if expected[block] != self._references[block]]
            raise KVCacheError(f"reference counts differ from the tables in blocks {wrong}")
        blank = set(self._blank)
        if len(blank) != len(self._blank):
            raise KVCacheError("a blank block is listed twice")
        for block, count in enumerate(self._references):
            key = self._hashes[block]
            states = (count > 0, block in self._idle, block in blank)
            if sum(states) != 1:
                raise KVCacheError(f"block {block} is in {sum(states)} states (held, idle, blank: {states})")
            if (block in self._idle and key is None) or (block in blank and key is not None):
                raise KVCacheError(f"block {block} is listed under the wrong kind of free")
            if key is not None and self._index.get(key) != block:
                raise KVCacheError(f"block {block} has a hash that the index doesn't know")
        if len(self._index) != sum(key is not None for key in self._hashes):
            raise KVCacheError("the index names a block that has no hash")

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        key = self._hashes[block]
        if key is None:
            raise KVCacheError(f"idle block {block} has no hash")
        del self._index[key]
        self._hashes[block] = None
        return block
