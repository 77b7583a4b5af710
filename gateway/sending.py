"""What is sent on of a request, whichever replica it goes to."""

from dataclasses import dataclass
from typing import Protocol

from policies.types import Lane

from .api import openai
from .api.openai import RequestHead
from .api.openai_fields import TGI
from .api.routes import Route
from .disconnect import Client, Send, Write
from .errors import Headers


class ReplicaView(Protocol):
    """What a request's bytes depend on."""

    def wire_name(self, model: str) -> str: ...

    url: str
    kind: str
    authorization: str | None
    priority_scheduling: bool


@dataclass(slots=True)
class Sending:
    """One request on its way: its head, its body, and the client that waits for the answer."""

    client: Client
    send: Send
    write: Write | None
    head: RequestHead
    body: bytes
    route: Route
    raw_headers: Headers
    query: bytes
    feature: str
    model: str | None
    """As the client called it."""
    is_restricted: bool
    """Whether the client may not use every model."""
    prompt_ids: list[int] | None = None
    """Token ids of the whole prompt, once they were needed."""

    def body_for(self, replica: ReplicaView, model: str) -> bytes:
        """As it came, but for the model's name where this replica has another one for it.

        Of a restricted client it is written anew: a second one in the body might be the one that the replica takes.
        """
        name = replica.wire_name(model)
        if self.feature == TGI or (name == self.model and not self.is_restricted):
            return self.body
        return self.route.rename(self.body, self.raw_headers, name)

    def head_for(
        self, replica: ReplicaView, lane: Lane, authority: str, num_body_bytes: int, *, start: bytes | None = None
    ) -> bytes:
        """`start`: method and target of a call of ours; None: those of the request."""
        head = self.head
        if start is None:
            start = self.route.request_start
            target = b"%b?%b" % (start, self.query) if self.query else start
        else:
            target = start
            head = openai.of_own_call(head)
        prefix = b"%b HTTP/1.1\r\nhost: %b\r\n" % (target, authority.encode())
        authorization = replica.authorization
        return openai.request_bytes(
            prefix,
            head,
            num_body_bytes,
            authorization=None if authorization is None else authorization.encode(),
            priority_lane=lane if replica.priority_scheduling else None,
        )
