"""When background work may go although others wait, and how much it may take from them."""


class BackgroundClaim:
    """Background work has no turn: it runs where nobody else waits. This keeps it from waiting for ever.

    A background request that has waited `max_wait_s` goes ahead of everybody, as any overdue request does. What is
    taken from the others in this way stays within `max_share` of the work: after a claim of cost C the next one comes
    only when others have had C · (1 − max_share) / max_share. So a thousand jobs that are overdue together don't push
    everybody else aside, and each of them still goes: the n-th after its wait and n − 1 such intervals at most.
    """

    def __init__(self, *, max_wait_s: float, max_share: float) -> None:
        """Seconds; a share in 0..1, above 0."""
        self.max_wait_s = max_wait_s
        self._others_per_claim = (1.0 - max_share) / max_share
        self._owed_s = 0.0

    @property
    def may_claim(self) -> bool:
        """Whether the others have had their part since the last claim."""
        return self._owed_s <= 0.0

    def claimed(self, cost_s: float) -> None:
        """An overdue background request of this predicted cost goes ahead of others."""
        self._owed_s = cost_s * self._others_per_claim

    def others_went(self, cost_s: float) -> None:
        """A request that isn't background, of this predicted cost, goes."""
        if self._owed_s > 0.0:
            self._owed_s = max(0.0, self._owed_s - cost_s)
