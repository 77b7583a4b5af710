"""Counting with the model's own tokenizer, each part of a prompt once: a system prompt that comes again, or a
conversation that goes on, costs only what is new in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .api.fields import RequestFields
from .digest_cache import DigestCache, digest
from .encoders import Encoder
from .model_tokenizer import ModelTokenizer


@dataclass(slots=True)
class Work:
    """A count on its way: tokens so far, and what is still to be counted, by its digest.

    `repeated` has those that come once more in the same prompt.
    """

    num_tokens: int
    whole: Sequence[str] = ()
    known: list[bytes] = field(default_factory=list)
    missing: dict[bytes, str] = field(default_factory=dict)
    num_missing_bytes: int = 0
    repeated: list[bytes] = field(default_factory=list)
    counted: dict[bytes, int] = field(default_factory=dict)


class LocalCounter:
    """Counts for one model. `begin` looks up what is known, `finish` counts the rest, `remember` keeps that.

    The first two may run on any thread, the last on the event loop.
    """

    def __init__(self, tokenizer: ModelTokenizer, cache: DigestCache[int]) -> None:
        self._tokenizer = tokenizer
        self._cache = cache

    @property
    def encoder(self) -> Encoder:
        return self._tokenizer.encoder

    def begin(self, fields: RequestFields, scope: bytes) -> Work:
        """Renders and cuts the prompt; `scope` is of the model and of whoever may learn what others sent.

        Raises TemplateRefused.
        """
        tokenizer = self._tokenizer
        if fields.messages is not None:
            prompt = tokenizer.chat(fields.messages, fields.tools)
        else:
            prompt = tokenizer.texts(texts_of(fields))
        work = Work(prompt.num_special, whole=prompt.whole)
        work.num_missing_bytes = sum(map(len, prompt.whole))
        for part in prompt.parts:
            data = part.encode()
            key = digest(data, scope)
            known = self._cache.get(key)
            if known is not None:
                work.num_tokens += known
                work.known.append(key)
            elif key in work.missing:
                work.repeated.append(key)
            else:
                work.missing[key] = part
                work.num_missing_bytes += len(data)
        return work

    def finish(self, work: Work) -> int:
        """Tokens of the whole prompt. Raises TokenizeError."""
        work.counted = counted = {key: self.encoder.count(part) for key, part in work.missing.items()}
        work.num_tokens += sum(counted.values()) + sum(map(counted.__getitem__, work.repeated))
        if work.whole:
            work.num_tokens += sum(self._tokenizer.exact.counts(work.whole))
        return work.num_tokens

    def remember(self, work: Work) -> None:
        self._cache.used(work.known)
        for key, tokens in work.counted.items():
            self._cache.put(key, tokens)


def texts_of(fields: RequestFields) -> list[str]:
    """The texts among its prompts."""
    if isinstance(fields.prompt, str):
        return [fields.prompt]
    return [text for text in fields.prompt or () if isinstance(text, str)]
