"""Conversations of other APIs in the shape of OpenAI's chat, as far as counting needs it: roles and text."""

from typing import Any

import orjson


def said(role: str, content: object) -> dict[str, Any]:
    """A message with all text in `content`: text, blocks or parts of any API, nested or not. What has no text, such
    as a picture, is left out."""
    if type(content) is str:
        return {"role": role, "content": content}
    texts: list[str] = []
    _collect(content, texts, 4)
    return {"role": role, "content": "\n".join(texts)}


def _collect(content: object, texts: list[str], levels: int) -> None:
    if type(content) is str:
        texts.append(content)
    elif type(content) is list and levels:
        for part in content:
            _collect(part, texts, levels - 1)
    elif type(content) is dict and levels:
        # Text of every API; what an assistant thought; a tool's arguments, as the model wrote them; a tool's result.
        for name in ("text", "thinking", "name", "content", "output"):
            _collect(content.get(name), texts, levels - 1)
        if type(arguments := content.get("input")) is dict:
            texts.append(orjson.dumps(arguments).decode())
