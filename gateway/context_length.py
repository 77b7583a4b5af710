"""Prompts that no replica would take: refused before they wait, and before an idle replica is kept free for them."""

from collections.abc import Iterable

from .api.fields import RequestFields
from .errors import ContextTooLong
from .replica import Replica
from .tokens import TokenCount


def longest_prompt_tokens(fields: RequestFields, model: str, replicas: Iterable[Replica]) -> int | None:
    """What the most capable of these replicas, all that serve the model, takes.

    None where one of them doesn't tell, where the body asks for a prompt that is too long to be cut, and for several
    prompts, of which only the sum is counted.
    """
    if fields.may_be_cut or fields.has_several_prompts:
        return None
    longest_tokens: int | None = None
    for replica in replicas:
        card = replica.cards.get(model)
        if card is None or card.max_model_len is None:
            return None
        longest_tokens = max(longest_tokens or 0, card.max_model_len)
    return longest_tokens


async def exact_if_too_long(counted: TokenCount, longest_tokens: int | None) -> TokenCount:
    """Waits for the count behind an estimate that is beyond the bound."""
    if longest_tokens is None or counted.exact is None or counted.prompt_tokens <= longest_tokens:
        return counted
    return await counted.exact


def check_length(counted: TokenCount, longest_tokens: int | None, model: str) -> None:
    """Raises ContextTooLong, where the tokens were counted here: an estimate refuses nothing."""
    if longest_tokens is not None and counted.source == "local" and counted.prompt_tokens > longest_tokens:
        raise ContextTooLong(model, counted.prompt_tokens, longest_tokens)
