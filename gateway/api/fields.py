"""What scheduling needs to know of a request, and how it is read from OpenAI's text routes.

A body is parsed once, only to be looked at: what is forwarded is the bytes that came.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import BadRequest, Headers
from . import body as read
from .sliceable import MIN_BODY_BYTES, is_sliceable

# A token's embedding in `prompt_embeds`: some 4,096 half-precision values in base64.
PROMPT_EMBEDS_BYTES_PER_TOKEN = 10_000


class RequestFields(NamedTuple):
    """What scheduling needs to know.

    `messages` and `tools` (in the shape of OpenAI's chat, whatever the API) or `prompt` (text, token ids, or a list
    of either) are what is counted; where there is no text to count, `estimated_tokens` stands for it, and without that
    the size of the body. `max_output_tokens` is the caller's bound over all choices of all prompts, None without one.
    `priority` is higher goes first (the wire has vLLM's sign, lower first). `feature` is what the replica must be able
    to do, where that depends on the body; None leaves it to the route. `adapters` are named beside the model (SGLang's
    `lora_path`, TGI's `adapter_id`): they need the same permission. `may_be_cut`: the replica is asked to cut a
    prompt that is too long. `can_be_sliced`: it is one long text, whose first part the engine would compute alike.
    """

    num_body_bytes: int
    model: str | None = None
    stream: bool = False
    max_output_tokens: int | None = None
    num_choices: int = 1
    priority: int = 0
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    tools: list[Any] | None = None
    include_usage: bool = False
    estimated_tokens: int | None = None
    adapters: tuple[str, ...] = ()
    feature: str | None = None
    may_be_cut: bool = False
    can_be_sliced: bool = False

    @property
    def has_several_prompts(self) -> bool:
        """Each is bounded by the model's context, not their sum."""
        prompt = self.prompt
        return type(prompt) is list and len(prompt) > 1 and type(prompt[0]) is not int


def read_chat(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /v1/chat/completions."""
    parsed = read.parse_object(body, max_depth=max_depth)
    return _generation(body, parsed, read.messages(parsed))


def read_completions(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /v1/completions."""
    parsed = read.parse_object(body, max_depth=max_depth)
    embeds = parsed.get("prompt_embeds")
    if parsed.get("prompt") is None and embeds is not None:
        num_bytes = len(embeds) if type(embeds) is str else len(body)
        estimate = max(1, num_bytes // PROMPT_EMBEDS_BYTES_PER_TOKEN)
        return _generation(body, parsed, estimated_tokens=estimate)
    prompt, num_prompts = read_prompt(parsed, "prompt")
    return _generation(body, parsed, prompt=prompt, num_prompts=num_prompts)


def _generation(
    body: bytes,
    parsed: Mapping[str, Any],
    messages: list[dict[str, Any]] | None = None,
    *,
    prompt: str | list[Any] | None = None,
    num_prompts: int = 1,
    estimated_tokens: int | None = None,
) -> RequestFields:
    # What most bodies don't have is asked for before it is read.
    num_choices = num_prompts
    if "n" in parsed or "best_of" in parsed:
        num_choices *= max(read.count(parsed, "n", least=1) or 1, read.count(parsed, "best_of", least=1) or 1)
    bound = read.bound(parsed, "max_completion_tokens", "max_tokens")
    return RequestFields(
        len(body),
        read.text(parsed, "model"),
        read.flag(parsed, "stream"),
        None if bound is None else bound * num_choices,
        num_choices,
        -(read.count(parsed, "priority") or 0) if "priority" in parsed else 0,
        messages,
        prompt,
        read.items(parsed, "tools") if "tools" in parsed else None,
        "stream_options" in parsed and _include_usage(parsed),
        estimated_tokens,
        read.adapters(parsed, "lora_path") if "lora_path" in parsed else (),
        None,
        parsed.get("truncate_prompt_tokens") is not None,
        num_prompts == 1 and len(body) >= MIN_BODY_BYTES and is_sliceable(parsed, messages or ()),
    )


def read_prompt(parsed: Mapping[str, Any], name: str) -> tuple[str | list[Any], int]:
    """A prompt and how many there are in it: text, token ids, or a list of either."""
    prompt = parsed.get(name)
    if type(prompt) is str:
        return prompt, 1
    if type(prompt) is not list:
        raise read.wrong(name, "text, token ids, or a list of either", prompt)
    if not prompt:
        raise BadRequest(f"`{name}` must not be empty.", param=name)
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return prompt, 1
    if kinds == {str}:
        return prompt, len(prompt)
    if kinds == {list} and all(ids and set(map(type, ids)) == {int} for ids in prompt):
        return prompt, len(prompt)
    raise BadRequest(f"`{name}` must be text, token ids, or a list of either.", param=name)


def _include_usage(parsed: Mapping[str, Any]) -> bool:
    options = parsed.get("stream_options")
    if options is None:
        return False
    if type(options) is not dict:
        raise read.wrong("stream_options", "an object", options)
    return options.get("include_usage") is True
