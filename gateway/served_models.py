"""The models of all replicas, as the gateway's own list shows them."""

from collections.abc import Iterable
from dataclasses import dataclass

from .replica import Replica


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the gateway's own list shows it."""

    name: str
    max_model_len: int | None
    """The shortest among the replicas that tell, tokens."""
    root: str | None
    parent: str | None
    replica_ids: tuple[str, ...]
    is_available: bool
    """Whether a replica that serves it can take work."""


def served_models(replicas: Iterable[Replica]) -> dict[str, ServedModel]:
    """Models by name, in the order of the replicas; aliases are not among them."""
    serving: dict[str, list[Replica]] = {}
    for replica in replicas:
        for name in sorted(replica.models):
            serving.setdefault(name, []).append(replica)
    return {name: _served(name, each) for name, each in serving.items()}


def _served(name: str, replicas: list[Replica]) -> ServedModel:
    cards = [replica.cards[name] for replica in replicas if name in replica.cards]
    lengths = [card.max_model_len for card in cards if card.max_model_len is not None]
    return ServedModel(
        name=name,
        max_model_len=min(lengths, default=None),
        root=next((card.root for card in cards if card.root is not None), None),
        parent=next((card.parent for card in cards if card.parent is not None), None),
        replica_ids=tuple(replica.replica_id for replica in replicas),
        is_available=any(replica.is_available for replica in replicas),
    )
