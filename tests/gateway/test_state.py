"""A gateway alone has all capacity."""

from gateway.state.memory import MemoryCapacity
from policies.types import WantCapacity


async def test_everything_is_granted_at_once() -> None:
    """From start to close; a want outside of that is nobody's."""
    grants: list[tuple[str, int | None]] = []
    capacity = MemoryCapacity()
    want = WantCapacity("r1", 100, (1.0,))
    capacity.want(want)
    capacity.start(lambda replica_id, tokens: grants.append((replica_id, tokens)))
    capacity.want(want)
    await capacity.aclose()
    await capacity.aclose()
    capacity.want(want)
    assert grants == [("r1", None)]
