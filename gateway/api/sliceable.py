"""Which prompts can be computed ahead in slices, and what a replica's /tokenize is asked for their token ids."""

from collections.abc import Iterable, Mapping
from typing import Any

MIN_BODY_BYTES = 4096
"""Smaller bodies hold no prompt that takes long; they aren't looked at any further."""

# With these vLLM takes nothing from its prefix cache, or computes another prompt than the text says.
_HINDRANCES = ("prompt_logprobs", "truncate_prompt_tokens", "prompt_embeds", "mm_processor_kwargs")
# What the prompt's token ids depend on, by the names that /tokenize has for it too.
_OF_CHAT = (
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "tools",
)
_OF_TEXT = ("prompt", "add_special_tokens")
# /tokenize has no names for these, but passes what is meant for the template on to it.
_OF_TEMPLATE = ("documents", "reasoning_effort")


def is_sliceable(parsed: Mapping[str, Any], messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a body with one prompt, or these messages, is text whose ids can be asked for."""
    if any(parsed.get(name) is not None for name in _HINDRANCES):
        return False
    if parsed.get("echo") and parsed.get("logprobs") is not None:
        return False  # the log-probabilities of the prompt
    return all(_is_text(message.get("content")) for message in messages)


def _is_text(content: object) -> bool:
    """None is what a message with tool calls has."""
    if content is None or type(content) is str:
        return True
    return type(content) is list and all(
        type(part) is str or (type(part) is dict and part.get("type") == "text") for part in content
    )


def known_ids(parsed: Mapping[str, Any]) -> list[int] | None:
    """The prompt's token ids, where the caller gave them."""
    prompt = parsed.get("prompt")
    if type(prompt) is not list or not prompt or type(prompt[0]) is str:
        return None
    ids: list[int] = prompt[0] if type(prompt[0]) is list else prompt
    return ids


def tokenize_body(parsed: Mapping[str, Any], model: str) -> dict[str, Any]:
    """What to POST to /tokenize, in vLLM's way; `model` is the replica's name for it."""
    is_chat = parsed.get("messages") is not None
    names = _OF_CHAT if is_chat else _OF_TEXT
    asked = {"model": model} | {name: parsed[name] for name in names if parsed.get(name) is not None}
    if is_chat and (given := {name: parsed[name] for name in _OF_TEMPLATE if parsed.get(name) is not None}):
        if (effort := given.get("reasoning_effort")) is not None:
            given["enable_thinking"] = effort != "none"
        asked["chat_template_kwargs"] = given | (asked.get("chat_template_kwargs") or {})
    return asked
