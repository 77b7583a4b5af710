"""Reading event streams as the standard says, slowly and plainly: WHATWG HTML, 9.2.5 and 9.2.6."""

import re
from typing import NamedTuple


class Event(NamedTuple):
    """One that is dispatched. `name` is "message" unless the stream says otherwise; `last_id` is the id so far."""

    name: str
    data: str
    last_id: str


def events_of(stream: bytes) -> list[Event]:
    """All events of a whole stream. What the stream ends inside of is none."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    *lines, _unfinished = re.split("\r\n|\n|\r", text)
    events: list[Event] = []
    data = name = last_id = ""
    for line in lines:
        if line == "":
            if data != "":
                events.append(Event(name or "message", data.removesuffix("\n"), last_id))
            data = name = ""
        elif line.startswith(":"):
            continue
        else:
            field, colon, value = line.partition(":")
            if colon:
                value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data += value + "\n"
            elif field == "id" and "\0" not in value:
                last_id = value
    return events
