"""How large a prompt is before anything of it is counted."""

from .api.fields import RequestFields


def given_ids(fields: RequestFields) -> int | None:
    """Tokens of prompts given as ids; None for others."""
    prompt = fields.prompt
    if not isinstance(prompt, list) or not prompt:
        return None
    if isinstance(prompt[0], int):
        return len(prompt)
    return sum(map(len, prompt)) if isinstance(prompt[0], list) else None


def num_prompts(fields: RequestFields) -> int:
    """Messages, or prompts of a completion."""
    if fields.messages is not None:
        return len(fields.messages)
    return len(fields.prompt) if isinstance(fields.prompt, list) else 1


def num_text_bytes(fields: RequestFields) -> int:
    """How much of a body is text: pictures and sound are written as text too, and cost no tokens for it."""
    messages = fields.messages or ()
    for message in messages:  # nearly always all are looked at: a generator takes twice as long
        if type(message.get("content")) is list:
            break
    else:
        return fields.num_body_bytes
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents for part in (content if type(content) is list else (content,)))
    texts = (part.get("text") if type(part) is dict else part for part in parts)
    return sum(len(text.encode()) for text in texts if type(text) is str)
