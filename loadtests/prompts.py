"""Synthetic prompts of a wanted token length.

Prompts are chains of everyday words, each of which is one token in the target's tokenizer; the order is drawn from a
key, so no two requests share more than the chat template's head, and no prefix cache helps unless a scenario asks for
a shared prefix. The target tells which words qualify and what its template adds, through `/tokenize` where it has one
and through `usage.prompt_tokens` of one-token answers elsewhere.
"""

from collections.abc import Sequence
from typing import Any

from .client import LoadClient
from .errors import TargetError
from .workload import PlannedRequest, rng_for

WORDS = """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city community name president team minute idea body information
    back parent face others level office door health person art war history party result change morning reason
    research girl guy moment air teacher force education foot boy age policy music market sense nation plan college
    interest death experience effect use class control field development role effort rate heart drug show leader
    light voice wife police mind price report decision son view relationship town road arm difference value building
    action season society tax director position player record
""".split()  # noqa: SIM905 - a list literal would take a line a word


class PromptMaker:
    """Makes chat messages of a wanted number of prompt tokens, template included.

    `overhead_tokens` is what the template adds; every word of `words` was seen to be one token.
    """

    def __init__(self, words: tuple[str, ...], overhead_tokens: int) -> None:
        self.words = words
        self.overhead_tokens = overhead_tokens

    @classmethod
    async def calibrate(cls, client: LoadClient) -> "PromptMaker":
        """Asks the target. Raises `TargetError` where it counts nothing, or no word is a single token."""
        count = _Counter(client)
        once = await count(_chat(WORDS))
        twice = await count(_chat(WORDS + WORDS))
        if twice - once == len(WORDS):
            return cls(tuple(WORDS), once - len(WORDS))
        if not count.uses_tokenize:
            # Too dear to ask a word at a time: let the average stand for every word.
            raise TargetError("the target has no /tokenize and its tokenizer splits everyday words")
        words = [word for word in WORDS if await count(_chat([word] * 9)) - await count(_chat([word])) == 8]
        if len(words) < 16:
            raise TargetError("fewer than 16 everyday words are single tokens in the target's tokenizer")
        return cls(tuple(words), await count(_chat(words)) - len(words))

    def messages(self, request: PlannedRequest, key: object) -> list[dict[str, str]]:
        """One user message whose words are drawn from `key` and the request's index.

        Lengths under the template's own take one word. The first `shared_prefix_tokens` of the words are the same
        for all requests of a lane.
        """
        num_words = max(1, request.prompt_tokens - self.overhead_tokens)
        num_shared = min(num_words - 1, max(0, request.shared_prefix_tokens - self.overhead_tokens))
        shared = rng_for("shared", request.lane).choice(len(self.words), num_shared)
        own = rng_for(key, request.index, "words").choice(len(self.words), num_words - num_shared)
        return _chat([self.words[index] for index in (*shared, *own)])

    def block_messages(
        self, request: PlannedRequest, key: object, block_ids: Sequence[int], block_tokens: int
    ) -> list[dict[str, str]]:
        """A prompt that begins as others with the same leading blocks do: each id stands for words of its own.

        Only whole blocks are common; the words after them are drawn from `key` and the request's index. The template's
        head comes before them, so that blocks of an engine's cache are reached a little later than the trace's.
        """
        num_words = max(1, request.prompt_tokens - self.overhead_tokens)
        places: list[int] = []
        for block_id in block_ids[: num_words // block_tokens]:
            places += rng_for("block", block_id).choice(len(self.words), block_tokens).tolist()
        places += rng_for(key, request.index, "words").choice(len(self.words), num_words - len(places)).tolist()
        return _chat([self.words[place] for place in places])


class _Counter:
    """Prompt tokens of messages by the target's own count."""

    def __init__(self, client: LoadClient) -> None:
        self._client = client
        self.uses_tokenize = True

    async def __call__(self, messages: list[dict[str, str]]) -> int:
        if self.uses_tokenize:
            body = {"model": self._client.model, "messages": messages, "add_generation_prompt": True}
            status, answer = await self._client.post_json("/tokenize", body)
            if status == 200 and isinstance(answer, dict) and isinstance(answer.get("count"), int):
                return int(answer["count"])
            self.uses_tokenize = False
        body = {"model": self._client.model, "messages": messages, "max_tokens": 1}
        status, answer = await self._client.post_json("/v1/chat/completions", body)
        usage: Any = answer.get("usage") if isinstance(answer, dict) else None
        if status != 200 or not isinstance(usage, dict) or not isinstance(usage.get("prompt_tokens"), int):
            raise TargetError(f"{self._client.url} answered {status} and no token count to a one-token chat")
        return int(usage["prompt_tokens"])


def _chat(words: list[str] | tuple[str, ...]) -> list[dict[str, str]]:
    return [{"role": "user", "content": " ".join(words)}]
