"""Names of requests: of one form, never twice, and made from the generator that was given."""

import random
import re

from gateway.request_id import RequestIds


def test_names_are_distinct_and_of_one_form() -> None:
    """128 bits in hex each, leading zeros included, however many are made at once."""
    ids = RequestIds(random.SystemRandom())
    names = [ids.next() for _ in range(1000)]
    assert len(set(names)) == 1000
    assert all(re.fullmatch("tg-[0-9a-f]{32}", name) for name in names)


def test_the_generator_decides() -> None:
    """The same seed gives the same names."""
    first, second = (RequestIds(random.Random(7)) for _ in range(2))
    assert [first.next() for _ in range(100)] == [second.next() for _ in range(100)]


class Zeros(random.Random):
    def getrandbits(self, k: int) -> int:
        return 1


def test_small_numbers_keep_their_zeros() -> None:
    """All names have all their digits."""
    ids = RequestIds(Zeros())
    assert {ids.next() for _ in range(64)} == {f"tg-{0:032x}", f"tg-{1:032x}"}
