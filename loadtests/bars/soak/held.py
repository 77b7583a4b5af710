"""What a gateway's process holds at one moment, read from outside: its metrics and /proc."""

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ...cost.process_tree import resident_bytes

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LISTENS = "0A"

Samples = list[tuple[str, dict[str, str], float]]


@dataclass(frozen=True, slots=True)
class Held:
    """Counts; memory in bytes. `slots`: by what they are of, all of them 0 when nothing is being served."""

    slots: dict[str, float]
    num_tasks: float
    sockets: dict[str, int]
    rss_bytes: int


async def samples(admin_url: str) -> Samples:
    """The metrics page: name, labels, value. Over a connection of its own, which is closed."""
    async with aiohttp.ClientSession() as session, session.get(f"{admin_url}/metrics") as response:
        response.raise_for_status()
        page = await response.text()
    return [
        (sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def sum_of(page: Samples, name: str, **labels: str) -> float:
    """Of all samples of this name with these labels."""
    return sum(
        value for found, has, value in page if found == name and all(has.get(key) == labels[key] for key in labels)
    )


async def held(admin_url: str, pid: int, port: int, replica_ports: tuple[int, ...]) -> Held:
    """As it is now."""
    page = await samples(admin_url)
    names = {
        "in flight": "tailgate_requests_in_flight",
        "tokens in flight": "tailgate_in_flight_tokens",
        "queued": "tailgate_requests_queued",
        "of keys' requests": "tailgate_limited_requests_in_flight",
        "of keys' tokens": "tailgate_limited_tokens_in_flight",
    }
    return Held(
        {shown: sum_of(page, name) for shown, name in names.items()},
        sum_of(page, "tailgate_tasks"),
        _sockets(pid, port, replica_ports),
        resident_bytes([pid]),
    )


def _sockets(pid: int, port: int, replica_ports: tuple[int, ...]) -> dict[str, int]:
    """TCP connections of a process, by side."""
    inodes = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            match = _SOCKET.fullmatch(os.readlink(entry.path))
        except OSError:  # closed meanwhile
            continue
        if match is not None:
            inodes.add(match[1])
    sides: Counter[str] = Counter({"clients": 0, "replicas": 0, "others": 0})
    for row in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = row.split()
        if fields[9] not in inodes or fields[3] == _LISTENS:
            continue
        local, remote = (int(fields[index].rsplit(":", 1)[1], 16) for index in (1, 2))
        sides["clients" if local == port else "replicas" if remote in replica_ports else "others"] += 1
    return dict(sides)
