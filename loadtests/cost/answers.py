"""The bytes of the instant replica's answers, known to whoever checks them."""

import json

_WORDS = (" the", " quick", " brown", " fox", " jumps", " over", " a", " lazy", " dog", ",")
DONE = b"data: [DONE]\n\n"


def whole_answer(model: str, name: str, num_tokens: int) -> bytes:
    """Body of a chat completion of so many tokens. `name` is in its id, so that no two answers are alike."""
    text = "".join(_WORDS[index % len(_WORDS)] for index in range(num_tokens))
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens}
    head = {"id": f"chatcmpl-{name}", "object": "chat.completion", "created": 1, "model": model}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


class StreamEvents:
    """The events of one streamed chat completion: a token each, then the end."""

    __slots__ = ("_head", "_num_tokens")

    def __init__(self, model: str, name: str, num_tokens: int) -> None:
        head = {"id": f"chatcmpl-{name}", "object": "chat.completion.chunk", "created": 1, "model": model}
        self._head = f"data: {json.dumps(head)[:-1]}".encode()
        self._num_tokens = num_tokens

    def event(self, index: int) -> bytes:
        """That of token `index`, from 0; the last one says that it is, and brings the end of the stream."""
        is_last = index == self._num_tokens - 1
        event = b'%b, "choices": [{"index": 0, "delta": {"content": "%b"}, "finish_reason": %b}]}\n\n' % (
            self._head,
            _WORDS[index % len(_WORDS)].encode(),
            b'"length"' if is_last else b"null",
        )
        return event + DONE if is_last else event

    def whole(self) -> bytes:
        """All of them."""
        return b"".join(self.event(index) for index in range(self._num_tokens))
