"""Cutting texts at added tokens: as the tokenizer finds them, and only where that is exact."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from gateway import added_tokens
from gateway.added_tokens import MAX_PARTS, AddedTokens, NotIndependentError, independent_tokens

CONTENTS = ("<a>", "<a><b>", "<a", "b", "é<", "[INST]", "<|x|>", "<|x|>y", ".*")


def by_definition(text: str, contents: tuple[str, ...]) -> list[str]:
    """What stands between the leftmost, longest of these, one character at a time."""
    parts, part, at = [], "", 0
    while at < len(text):
        found = max((content for content in contents if text.startswith(content, at)), key=len, default="")
        if found:
            parts.append(part)
            part, at = "", at + len(found)
        else:
            part, at = part + text[at], at + 1
    return [*parts, part]


@given(st.lists(st.sampled_from([*CONTENTS, "<", "a", ">", "x|", " ", "\n", "[INS", "ab"]), max_size=40))
def test_the_leftmost_and_longest_is_found(pieces: list[str]) -> None:
    """Also where tokens begin alike, contain one another, or are made of an expression's own characters."""
    text = "".join(pieces)
    parts = by_definition(text, CONTENTS)
    assert AddedTokens(CONTENTS).split(text) == ([part for part in parts if part], len(parts) - 1)


def test_long_texts_are_cut_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Window by window, whatever lies across a border: a token, or most of one."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(added_tokens, "WINDOW_CHARACTERS", 16)
    for _ in range(500):
        text = "".join(rng.choices([*CONTENTS, "<", "a", "<|x|", "z", " "], k=rng.randrange(80)))
        parts = by_definition(text, CONTENTS)
        assert AddedTokens(CONTENTS).split(text) == ([part for part in parts if part], len(parts) - 1)


@pytest.mark.parametrize("filling", ["x", "x" * 100], ids=["short", "long"])
def test_a_text_of_too_many_parts_is_left_whole(filling: str) -> None:
    """At the limit it is still cut."""
    added = AddedTokens(["<a>"])
    assert added.split((filling + "<a>") * (MAX_PARTS - 1) + "x") == (
        [filling] * (MAX_PARTS - 1) + ["x"],
        MAX_PARTS - 1,
    )
    assert added.split((filling + "<a>") * MAX_PARTS + "x") is None


def test_without_added_tokens_a_text_is_one_part() -> None:
    """Empty ones are none, and an empty text has no parts."""
    assert AddedTokens([""]).split("a<a>") == (["a<a>"], 0)
    assert AddedTokens(["<a>"]).split("") == ([], 0)


def specification(*tokens: AddedToken, pre_tokenizer: Any = None) -> dict[str, Any]:
    import orjson

    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_tokens(list(tokens))
    spec: dict[str, Any] = orjson.loads(tokenizer.to_str())
    return spec


def test_tokens_found_in_the_normalized_text_stay_inside() -> None:
    """The text isn't normalized here, so they can't be found."""
    early, late = AddedToken("<e>", normalized=False), AddedToken("<l>", normalized=True)
    assert independent_tokens(specification(early, late)).split("a<e>b<l>c") == (["a", "b<l>c"], 1)
    assert independent_tokens({}).split("a<e>b") == (["a<e>b"], 0)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_tokens_that_depend_on_their_neighbours_forbid_cutting(flag: str) -> None:
    """They take in white space, or only count between other things."""
    with pytest.raises(NotIndependentError, match="beside"):
        independent_tokens(specification(AddedToken("<a>", normalized=False, **{flag: True})))


def test_a_beginning_that_is_tokenized_differently_forbids_cutting() -> None:
    """However deep it is hidden; what is done to every part alike is no obstacle."""
    always = pre_tokenizers.Metaspace(prepend_scheme="always")
    first = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.Metaspace(prepend_scheme="first")])
    token = AddedToken("<a>", normalized=False)
    assert independent_tokens(specification(token, pre_tokenizer=always)).split("<a>") == ([], 1)
    with pytest.raises(NotIndependentError, match="beginning"):
        independent_tokens(specification(token, pre_tokenizer=first))
