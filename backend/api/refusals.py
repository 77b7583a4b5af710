"""Fields that OpenAI or vLLM give a meaning that this engine can't honour.

Each is listed with the values that ask for nothing; any other value is refused with its name, rather than ignored: an
answer that silently lacks what was asked for is worse than none.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .errors import unsupported

_ANY_ROUTE: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": ({},),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
CHAT: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    _ANY_ROUTE
    | {
        "audio": (),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "continue_final_message": (False,),
        "documents": ([],),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "prediction": (),
        "reasoning_effort": ("none",),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "web_search_options": (),
    }
)
COMPLETIONS: Mapping[str, tuple[Any, ...]] = MappingProxyType(_ANY_ROUTE | {"prompt_embeds": (), "suffix": ("",)})


def refuse_unsupported(body: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise a 400 that names the first field of `body` which asks for something unsupported. None asks for nothing."""
    for field in table.keys() & body.keys():
        value = body[field]
        if value is not None and not any(_same(value, neutral) for neutral in table[field]):
            allowed = ", ".join(["null", *(repr(neutral) for neutral in table[field])])
            raise unsupported(field, f"this engine does not support it; what it accepts here: {allowed}")


def _same(value: Any, neutral: Any) -> bool:
    """Equal, with 1 and true apart."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
