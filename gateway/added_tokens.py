"""Cutting a text where tokenization can't cross: at the tokens that were added to the vocabulary.

`tokenizers` looks for those first, in the text as it is, and tokenizes what stands between them piece by piece, each
by itself. So the tokens of a text are its added tokens and those of its parts, whatever order they are counted in.
"""

import re
from collections.abc import Iterable, Mapping
from os.path import commonprefix
from typing import Any

WINDOW_CHARACTERS = 65_536
"""Searched in one go, since a search holds the interpreter lock: 0.02 ms, under 1 ms in a text made to be slow."""


MAX_PARTS = 4096
"""A text of more is left whole: handling them one by one would take longer than it saves."""


class NotIndependentError(Exception):
    """What stands between added tokens isn't tokenized by itself; says why."""


class AddedTokens:
    """The added tokens of a vocabulary, given by their texts."""

    def __init__(self, contents: Iterable[str]) -> None:
        given = list(dict.fromkeys(content for content in contents if content))
        self._pattern = re.compile(_expression(given)) if given else None
        self._longest = max(map(len, given), default=0)

    def split(self, text: str) -> tuple[list[str], int] | None:
        """What stands between added tokens, and how many of those there are. None: more than `MAX_PARTS`.

        Where several tokens fit, the leftmost counts, and the longest of those.
        """
        if self._pattern is None:
            return [text], 0
        if len(text) <= WINDOW_CHARACTERS:
            parts = self._pattern.split(text, maxsplit=MAX_PARTS)
        else:
            parts = self._split_windows(self._pattern, text)
        return ([part for part in parts if part], len(parts) - 1) if len(parts) <= MAX_PARTS else None

    def _split_windows(self, pattern: re.Pattern[str], text: str) -> list[str]:
        parts: list[str] = []
        began = at = 0
        while at < len(text) and len(parts) < MAX_PARTS:
            end = at + WINDOW_CHARACTERS
            found = pattern.search(text, at, end + self._longest)
            if found is None or found.start() >= end:
                at = end
                continue
            parts.append(text[began : found.start()])
            began = at = found.end()
        parts.append(text[began:])
        return parts


def independent_tokens(spec: Mapping[str, Any]) -> AddedTokens:
    """The added tokens at which a text may be cut, from the contents of tokenizer.json. Raises NotIndependentError.

    Those found only after the text was normalized are left inside the parts.
    """
    tokens = [token for token in spec.get("added_tokens") or () if not token.get("normalized", True)]
    if any(token.get(name) for token in tokens for name in ("lstrip", "rstrip", "single_word")):
        raise NotIndependentError("added tokens take in or depend on what stands beside them")
    if _looks_at_place(spec.get("pre_tokenizer")):
        raise NotIndependentError("the beginning of a text is tokenized differently")
    return AddedTokens(token["content"] for token in tokens)


def _looks_at_place(spec: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer does something else with the first part of a text."""
    if spec is None:
        return False
    return spec.get("prepend_scheme") == "first" or any(map(_looks_at_place, spec.get("pretokenizers") or ()))


def _expression(contents: Iterable[str]) -> str:
    """A regular expression for any of these, common beginnings joined, so that a near miss costs little."""
    groups: dict[str, list[str]] = {}
    for content in contents:
        groups.setdefault(content[0], []).append(content)
    branches = []
    for group in groups.values():
        start = commonprefix(group)  # noqa: RUF071 - of characters, as is meant
        rests = [content[len(start) :] for content in group]
        longer = [rest for rest in rests if rest]
        inside = f"(?:{_expression(longer)})" if longer else ""
        branches.append(re.escape(start) + (f"{inside}?" if longer and len(longer) < len(rests) else inside))
    return "|".join(branches)
