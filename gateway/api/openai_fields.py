"""Reading OpenAI's newer and plainer routes, and those that vLLM adds in their manner."""

from collections.abc import Mapping
from typing import Any

from ..errors import Headers
from . import body as read
from .conversation import said
from .fields import RequestFields, read_prompt

# Features that a /tokenize body needs, by the member that tells whose it is: TGI's, llama.cpp's, else vLLM's.
TOKENIZE = "tokenize"
TGI = "tgi"
LLAMA_TOKENIZE = "llama-tokenize"


def read_responses(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /v1/responses. What earlier responses hold isn't known here, so it isn't counted."""
    parsed = read.parse_object(body, max_depth=max_depth)
    return RequestFields(
        num_body_bytes=len(body),
        model=read.text(parsed, "model"),
        stream=read.flag(parsed, "stream"),
        max_output_tokens=read.bound(parsed, "max_output_tokens"),
        priority=-(read.count(parsed, "priority") or 0),
        messages=_conversation(parsed) or None,
        tools=read.items(parsed, "tools"),
        may_be_cut=parsed.get("truncation") not in (None, "disabled"),
    )


def _conversation(parsed: Mapping[str, Any]) -> list[dict[str, Any]]:
    instructions, given = read.text(parsed, "instructions"), parsed.get("input")
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append(said("system", instructions))
    if given is None:
        return messages
    if type(given) is str:
        return [*messages, said("user", given)]
    if type(given) is not list:
        raise read.wrong("input", "text or a list of items", given)
    for index, item in enumerate(given):
        if type(item) is not dict:
            raise read.wrong(f"input[{index}]", "an object", item)
        if "role" in item:
            role = item["role"]
            if type(role) is not str:
                raise read.wrong(f"input[{index}].role", "text", role)
            messages.append(said("system" if role == "developer" else role, item.get("content")))
        elif item.get("type") == "function_call":
            messages.append(said("assistant", [item.get("name"), item.get("arguments")]))
        elif item.get("type") == "function_call_output":
            messages.append(said("tool", item.get("output")))
    return messages


def read_embeddings(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /v1/embeddings, /pooling, /classify: `input` like a prompt, or vLLM's `messages`. Nothing is generated."""
    parsed = read.parse_object(body, max_depth=max_depth)
    counted: dict[str, Any] = {}
    if parsed.get("messages") is not None:
        counted["messages"] = read.messages(parsed)
    elif parsed.get("input") is not None and not _has_objects(parsed["input"]):
        counted["prompt"] = read_prompt(parsed, "input")[0]
    return _without_output(body, parsed, **counted)


def _has_objects(given: object) -> bool:
    """Whether the input is of parts with images and the like, which only its size says something about."""
    return type(given) is dict or (type(given) is list and any(type(item) is dict for item in given))


def read_texts(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """Rerank, score and speech: bodies of text whose tokens follow from their size. Nothing is generated as text."""
    return _without_output(body, read.parse_object(body, max_depth=max_depth))


def _without_output(body: bytes, parsed: Mapping[str, Any], **counted: Any) -> RequestFields:
    return RequestFields(
        num_body_bytes=len(body),
        model=read.text(parsed, "model"),
        max_output_tokens=0,
        adapters=read.adapters(parsed, "lora_path"),
        priority=-(read.count(parsed, "priority") or 0),
        may_be_cut=parsed.get("truncate_prompt_tokens") is not None,
        **counted,
    )


def read_model(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """A light route's body: only the model matters."""
    parsed = read.parse_object(body, max_depth=max_depth)
    return RequestFields(num_body_bytes=len(body), model=read.text(parsed, "model"))


def read_tokenize(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /tokenize, which three kinds of servers have, each with another body."""
    parsed = read.parse_object(body, max_depth=max_depth)
    feature = TGI if "inputs" in parsed else LLAMA_TOKENIZE if "content" in parsed else TOKENIZE
    return RequestFields(num_body_bytes=len(body), model=read.text(parsed, "model"), feature=feature)
