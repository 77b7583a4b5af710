"""Stop strings over text in pieces."""

import random

import pytest

from backend.stopping import Piece, StopStrings
from backend.text import TextStream


def feed(stop: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """All text given out, and what stopped it."""
    strings = StopStrings(stop)
    text = ""
    for part in pieces:
        piece = strings.push(part)
        text += piece.text
        if piece.stopped_by is not None:
            return text, piece.stopped_by
    return text + strings.flush(), None


def test_text_without_stop_strings_passes_at_once() -> None:
    """Nothing is held back."""
    assert StopStrings([]).push("abc") == Piece("abc")


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    """The longest end that is a start of one, and no more; it comes out when it turns out to be harmless."""
    strings = StopStrings(["END", "NDX"])
    assert strings.push("the EN") == Piece("the ")
    assert strings.push("T") == Piece("ENT")
    assert strings.push("ND") == Piece("")
    assert strings.flush() == "ND"
    assert strings.flush() == ""


def test_a_stop_string_across_pieces_ends_the_text_before_it() -> None:
    """Split in any way, it is found, named and not given out."""
    assert feed(["\n\n"], ["one\n", "\ntwo"]) == ("one", "\n\n")
    assert feed(["abc"], ["xa", "b", "c", "y"]) == ("x", "abc")


def test_the_earliest_of_several_wins() -> None:
    """By where it starts, not by its place in the list."""
    assert feed(["later", "soon"], ["so soon and later"]) == ("so ", "soon")


@pytest.mark.parametrize("seed", range(20))
def test_pieces_give_what_the_whole_text_gives(seed: int) -> None:
    """Random texts over two letters, cut at random: the same as searching the whole."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(100):
        text = "".join(chance.choice("ab") for _ in range(12))
        stop = ["".join(chance.choice("ab") for _ in range(chance.randint(2, 4)))]
        cuts = sorted(chance.sample(range(1, 12), 4))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]
        start = text.find(stop[0])
        expected = (text, None) if start < 0 else (text[:start], stop[0])
        assert feed(stop, pieces) == expected


class Delaying:
    """A detokenizer that keeps every token until the next one."""

    def __init__(self) -> None:
        self._kept = ""

    def push(self, token_id: int) -> str:
        kept, self._kept = self._kept, chr(token_id)
        return kept

    def flush(self) -> str:
        kept, self._kept = self._kept, ""
        return kept


def test_a_stop_string_in_the_kept_rest_still_counts() -> None:
    """Text that the detokenizer gives out only at the end is searched too."""
    stream = TextStream(Delaying(), ["b"], min_tokens=0)
    assert [stream.push(ord(letter)).text for letter in "ab"] == ["", "a"]
    assert stream.flush() == ""
    stream = TextStream(Delaying(), ["bc"], min_tokens=0)
    assert [stream.push(ord(letter)).text for letter in "ab"] == ["", "a"]
    assert stream.flush() == "b"


def test_stop_strings_count_from_the_minimum_on() -> None:
    """Before min_tokens tokens a stop string is plain text."""
    stream = TextStream(Delaying(), ["a"], min_tokens=4)
    assert [stream.push(ord(letter)) for letter in "aaba"] == [Piece(""), Piece("a"), Piece("a"), Piece("b")]
    assert stream.push(ord("c")) == Piece("", stopped_by="a")
