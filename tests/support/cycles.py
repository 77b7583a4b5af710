"""What only a search for reference cycles would free: a server that serves without a rest piles it up in between."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CoroutineType, FrameType

_OURS = ("gateway", "policies")


@contextmanager
def no_cycles(*packages: str) -> Iterator[None]:
    """Fails if what happens inside leaves objects of these packages (the gateway's) behind in cycles, or held by some.

    Everything that is to be gone has to be so before it ends; what still lives is no matter.
    """
    watched = tuple(f"{package}." for package in packages or _OURS)
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(name for item in gc.garbage if (name := _name(item)).startswith(watched))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found, f"left for a search for cycles: {dict(found)}"


def _name(item: object) -> str:
    if isinstance(item, FrameType):
        return f"{item.f_globals.get('__name__')}.{item.f_code.co_qualname} (its frame)"
    if isinstance(item, CoroutineType):
        module = item.cr_frame.f_globals.get("__name__") if item.cr_frame is not None else ""
        return f"{module}.{item.__qualname__} (a coroutine)"
    return f"{type(item).__module__}.{type(item).__qualname__}"
