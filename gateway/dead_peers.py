"""Noticing peers that are gone without a word: a machine that lost its power or its network closes nothing."""

import socket

IDLE_S = 30
INTERVAL_S = 10
NUM_PROBES = 3
UNACKNOWLEDGED_S = 60
"""What a replica doesn't take for so long it never will: the system itself would try for a quarter of an hour."""


def notice(sock: socket.socket, *, unacknowledged_s: int = 0) -> None:
    """Have the system ask the peer after `IDLE_S` of silence, and end the connection when it doesn't answer.

    `unacknowledged_s` ends it, too, when something that was sent isn't taken for so long; 0 leaves that to the system.
    Connections accepted by a listening socket have its settings. Systems that lack one of them keep their own.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_S),
        ("TCP_KEEPINTVL", INTERVAL_S),
        ("TCP_KEEPCNT", NUM_PROBES),
        ("TCP_USER_TIMEOUT", unacknowledged_s * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
