"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Sequence
from typing import Any

from ..sampler import SampledToken
from .prompts import Tokenizer

# JSON has no infinity; what vLLM and OpenAI send for a token that can't occur.
_LOWEST = -9999.0


class TokenTexts:
    """The text and bytes of single tokens. Bytes that are no character of their own become U+FFFD in the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encoded(self, token_id: int) -> bytes:
        return self._tokenizer.bytes_of(token_id, skip_special_tokens=False)

    def text(self, token_id: int) -> str:
        return self.encoded(token_id).decode(errors="replace")


def chat_logprobs(tokens: Sequence[SampledToken], texts: TokenTexts) -> dict[str, Any]:
    """Shape of chat completions: an entry a token, with its alternatives."""

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": texts.text(token_id),
            "logprob": _finite(logprob),
            "bytes": list(texts.encoded(token_id)),
        }

    return {
        "content": [
            {
                **entry(token.token_id, token.logprob),
                "top_logprobs": [entry(token_id, logprob) for token_id, logprob in token.top],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[SampledToken], texts: TokenTexts, start_offset: int) -> dict[str, Any]:
    """Shape of text completions: parallel lists. Offsets count characters of the answer from `start_offset`.

    The sampled token is among the alternatives even where it isn't one of the likeliest.
    """
    names = [texts.text(token.token_id) for token in tokens]
    offsets = []
    for name in names:
        offsets.append(start_offset)
        start_offset += len(name)
    return {
        "tokens": names,
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {
                texts.text(token_id): _finite(logprob)
                for token_id, logprob in (*token.top, (token.token_id, token.logprob))
            }
            for token in tokens
        ],
        "text_offset": offsets,
    }


def _finite(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(logprob, _LOWEST)
