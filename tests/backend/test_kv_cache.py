"""Block accounting: counts, prefix index, eviction, and the integrity check itself."""

import random

import pytest

from backend.kv_cache import BlockManager, KVCacheError, OutOfBlocksError, block_hash, root_hash


def chain(*blocks: list[int], salt: str | None = None) -> list[bytes]:
    """Hashes of full blocks one after the other."""
    hashes = [root_hash(salt=salt)]
    for token_ids in blocks:
        hashes.append(block_hash(hashes[-1], token_ids))
    return hashes[1:]


def test_roots_differ_by_salt_and_adapter() -> None:
    """None, empty and equal strings in the other place are all different domains."""
    roots = {
        root_hash(),
        root_hash(salt=""),
        root_hash(adapter=""),
        root_hash(salt="x"),
        root_hash(adapter="x"),
        root_hash(salt="x", adapter="x"),
        root_hash(salt="xa", adapter=""),
        root_hash(salt="x", adapter="a"),
    }
    assert len(roots) == 8


def test_a_block_hash_depends_on_all_that_came_before() -> None:
    """Equal blocks after different ones, or in another order, differ."""
    first = chain([1, 2], [3, 4])
    assert chain([1, 2], [3, 4]) == first
    assert chain([9, 2], [3, 4])[1] != first[1]
    assert chain([1, 2], [4, 3])[1] != first[1]
    assert chain([1, 2], salt="s")[0] != first[0]


def test_a_released_block_is_found_again_until_it_is_evicted() -> None:
    """Content stays while nobody needs the space; the least recently released goes first."""
    blocks = BlockManager(3, 2)
    a, b = chain([1, 2]), chain([3, 4])
    [block_a], [block_b] = blocks.allocate(1), blocks.allocate(1)
    blocks.register(block_a, a[0])
    blocks.register(block_b, b[0])
    blocks.release([block_a])
    blocks.release([block_b])
    assert blocks.free_blocks == 3
    assert blocks.match(a) == [block_a]
    blocks.allocate(2)
    assert blocks.match(a) == []
    assert blocks.match(b) == [block_b]
    blocks.allocate(1)
    assert blocks.match(b) == []


def test_the_end_of_a_prefix_is_evicted_before_its_start() -> None:
    """What comes first is worth more to others."""
    blocks = BlockManager(2, 2)
    hashes = chain([1, 2], [3, 4])
    table = blocks.allocate(2)
    for block, key in zip(table, hashes, strict=True):
        blocks.register(block, key)
    blocks.release(table)
    blocks.allocate(1)
    assert blocks.match(hashes) == table[:1]


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    """References are counted, exclusive and idle blocks told apart."""
    blocks = BlockManager(2, 2)
    table = blocks.allocate(1)
    blocks.register(table[0], chain([1, 2])[0])
    assert blocks.count_exclusive(table) == 1
    blocks.take(table)
    assert (blocks.count_exclusive(table), blocks.held_blocks) == (0, 1)
    blocks.release(table)
    assert (blocks.held_blocks, blocks.count_idle(table)) == (1, 0)
    blocks.release(table)
    assert (blocks.held_blocks, blocks.count_idle(table)) == (0, 1)
    blocks.check_integrity([])


def test_a_full_cache_refuses_and_takes_nothing() -> None:
    """Too many blocks: an error, and the state is as before."""
    blocks = BlockManager(2, 2)
    with pytest.raises(OutOfBlocksError, match="3 blocks wanted, 2 of 2 are free"):
        blocks.allocate(3)
    assert blocks.free_blocks == 2
    blocks.check_integrity([])


def test_a_second_block_with_the_same_content_is_not_indexed() -> None:
    """Two sequences that computed the same prompt at once keep one indexed copy."""
    blocks = BlockManager(2, 2)
    key = chain([1, 2])[0]
    table = blocks.allocate(2)
    blocks.register(table[0], key)
    blocks.register(table[1], key)
    assert blocks.match([key]) == table[:1]
    blocks.release(table)
    blocks.check_integrity([])


def test_without_prefix_caching_nothing_is_indexed() -> None:
    """Registering has no effect."""
    blocks = BlockManager(1, 2, enable_prefix_caching=False)
    table = blocks.allocate(1)
    blocks.register(table[0], chain([1, 2])[0])
    assert blocks.match(chain([1, 2])) == []


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 1), (1, 0)])
def test_a_cache_without_room_is_refused(num_blocks: int, block_size: int) -> None:
    """Sizes start at one."""
    with pytest.raises(ValueError, match="needs blocks"):
        BlockManager(num_blocks, block_size)


def test_misuse_is_an_error() -> None:
    """Double free, taking a blank block, indexing a free block or under two hashes."""
    blocks = BlockManager(2, 2)
    [block] = blocks.allocate(1)
    blocks.register(block, b"one")
    with pytest.raises(KVCacheError, match="two hashes"):
        blocks.register(block, b"two")
    blocks.release([block])
    with pytest.raises(KVCacheError, match="freed twice"):
        blocks.release([block])
    with pytest.raises(KVCacheError, match="not held"):
        blocks.register(block, b"three")
    with pytest.raises(KVCacheError, match="neither held nor cached"):
        blocks.take([1 - block])


def test_the_integrity_check_notices_leaks_and_wrong_counts() -> None:
    """A held block without a table, a table without a hold, a block twice in a table."""
    blocks = BlockManager(3, 2)
    table = blocks.allocate(2)
    blocks.check_integrity([table])
    for tables in ([], [table, table], [[*table, 2]], [[0, 0, 1]]):
        with pytest.raises(KVCacheError):
            blocks.check_integrity(tables)


def test_the_integrity_check_notices_broken_lists() -> None:
    """Corruption of each internal list is found."""

    def corrupt(change: str) -> BlockManager:
        blocks = BlockManager(3, 2)
        table = blocks.allocate(1)
        blocks.register(table[0], b"key")
        blocks.release(table)
        exec(change, {"b": blocks})
        return blocks

    for change in (
        "b._blank.append(b._blank[0])",
        "b._blank.popleft()",
        "b._blank.append(0)",
        "b._hashes[0] = None",
        "b._hashes[1] = b'other'",
        "b._index.clear()",
        "b._index[b'stray'] = 2",
    ):
        with pytest.raises(KVCacheError):
            corrupt(change).check_integrity([])


@pytest.mark.parametrize("seed", range(8))
def test_random_use_never_leaks(seed: int) -> None:
    """Random tables grow, share prefixes and end, in a small cache, and the books always balance."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    blocks = BlockManager(12, 2)
    live: list[tuple[list[int], list[bytes]]] = []
    for _ in range(1500):
        if live and chance.random() < 0.45:
            table, _ = live.pop(chance.randrange(len(live)))
            blocks.release(table)
        else:
            hashes = chain(*([chance.randrange(3)] * 2 for _ in range(chance.randint(1, 5))))
            found = blocks.match(hashes)
            need = len(hashes) - len(found)
            if need + blocks.count_idle(found) <= blocks.free_blocks:
                blocks.take(found)
                table = found + blocks.allocate(need)
                for block, key in list(zip(table, hashes, strict=True))[len(found) :]:
                    blocks.register(block, key)
                live.append((table, hashes))
        blocks.check_integrity(table for table, _ in live)
        assert blocks.held_blocks == len({block for table, _ in live for block in table})
