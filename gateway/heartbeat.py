"""Signs of life in a stream whose replica has nothing to say: comments, for whoever closes what is silent."""

import asyncio
from collections.abc import Callable

from .deadline import Deadline
from .disconnect import Send
from .eager import Pending, begin

COMMENT = b": keep-alive\n\n"


class Heartbeat:
    """Of one stream, as a plain object: `sent` after every piece, `close` at the end.

    After `every_s` without a piece, and again and again, a comment is sent if `may_beat` says so: never inside an
    event, and never to a client that is behind already.
    """

    __slots__ = ("_deadline", "_every_s", "_may_beat", "_send")

    def __init__(self, send: Send, every_s: float, may_beat: Callable[[], bool]) -> None:
        self._send = send
        self._every_s = every_s
        self._may_beat = may_beat
        self._deadline = Deadline(asyncio.get_running_loop(), self._beat)
        self.sent()

    def sent(self) -> None:
        """Something of the stream was."""
        self._deadline.set(self._every_s)

    def close(self) -> None:
        """The stream is over."""
        self._deadline.close()

    def _beat(self) -> None:
        if self._may_beat():
            unsent = begin(self._send({"type": "http.response.body", "body": COMMENT, "more_body": True}))
            if isinstance(unsent, Pending):  # the client takes nothing: it has no need of it
                unsent.give_up()
        self.sent()
