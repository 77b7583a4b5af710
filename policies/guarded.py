"""A core that goes on when a part of its policy raises: in order of arrival, with everything that it had.

Parts are asked in the middle of what the core does, so an exception leaves its books half-way. But the state of every
request and the call it has are known, and where it belongs follows from that. So the books are set right, a policy
without anything clever takes the place of the one that failed, and the input is taken in again as far as it wasn't.
"""

from collections.abc import Callable, Collection
from typing import Final

from . import appraisal
from .dispatch import DispatchCore
from .job import Job
from .lifecycle import Event, LifecycleError, State
from .policy import Policy
from .types import Effect, Notice, Outcome, RequestLike, Sample
from .verdict import Admitted, Rejected, admitted

_WITH_CALL: Final = frozenset({State.CALLING, State.STREAMING, State.STOPPING, State.LEAVING})


class GuardedCore(DispatchCore):
    """As `DispatchCore`. `make_fallback` makes the policy that serves after one has raised; what that one raises isn't
    caught. Misuse by the shell, LifecycleError, is no failure of a policy and passes through.
    """

    def __init__(self, policy: Policy, make_fallback: Callable[[], Policy]) -> None:
        super().__init__(policy)
        self.make_fallback = make_fallback
        """May be replaced at any time."""
        self.num_policy_failures = 0
        self._notices: list[Effect] = []

    def offer(self, request: RequestLike, now_s: float) -> Admitted | Rejected:
        try:
            return super().offer(request, now_s)
        except LifecycleError:
            raise
        except Exception as error:
            self._fall_back(error)
            job = self._books.jobs.get(request.request_id)
            return super().offer(request, now_s) if job is None else admitted(job)

    def recount(self, request: RequestLike, now_s: float) -> Admitted | None:
        try:
            return super().recount(request, now_s)
        except Exception as error:
            self._fall_back(error)
            return super().recount(request, now_s)

    def cancel(self, request_id: str, now_s: float) -> None:
        try:
            super().cancel(request_id, now_s)
        except Exception as error:
            self._fall_back(error)
            super().cancel(request_id, now_s)

    def progress(self, call_id: int, output_tokens: int, now_s: float) -> None:
        try:
            super().progress(call_id, output_tokens, now_s)
        except LifecycleError:
            raise
        except Exception as error:
            self._fall_back(error)
            super().progress(call_id, output_tokens, now_s)

    def call_ended(self, call_id: int, outcome: Outcome, sample: Sample, now_s: float) -> None:
        try:
            super().call_ended(call_id, outcome, sample, now_s)
        except LifecycleError:
            raise
        except Exception as error:
            self._fall_back(error)  # which ends what was ending; what was to be learned from it is lost

    def requeue(self, request_id: str, exclude: Collection[str], now_s: float) -> None:
        try:
            super().requeue(request_id, exclude, now_s)
        except LifecycleError:
            raise
        except Exception as error:
            self._fall_back(error)  # which puts it into the queue

    def replica_removed(self, replica_id: str, now_s: float) -> None:
        try:
            super().replica_removed(replica_id, now_s)
        except KeyError:
            raise
        except Exception as error:
            self._fall_back(error)
            super().replica_removed(replica_id, now_s)

    def set_policy(self, policy: Policy, now_s: float) -> None:
        try:
            super().set_policy(policy, now_s)
        except Exception as error:
            self._fall_back(error)

    def _decide(self, now_s: float, effects: list[Effect]) -> None:
        try:
            super()._decide(now_s, effects)
        except Exception as error:
            self._fall_back(error)
            super()._decide(now_s, effects)
        if self._notices:
            effects += self._notices
            self._notices = []

    def _fall_back(self, error: Exception) -> None:
        failed, policy = self._policy.name, self.make_fallback()
        self.num_policy_failures += 1
        self._notices.append(
            Notice(f"policy {failed} failed: {policy.name} decides until another one is set ({error!r})", error)
        )
        self._settle_calls()
        self._settle_parked()
        jobs = self._books.jobs
        for request_id in [request_id for request_id, job in jobs.items() if job.state is State.ENDED]:
            del jobs[request_id]
        self._use(policy)
        for job in jobs.values():
            job.flow = policy.turns.flows.key(job.request)
            if job.charged_to is not None:
                job.charged_to = policy.turns.lanes(job.flow)
        waiting = [job for job in jobs.values() if job.state is State.WAITING]
        for job in sorted(waiting, key=_came):
            appraisal.estimate(policy, job)
            appraisal.enlist(policy, job)
            self._join_queue(job)

    def _settle_calls(self) -> None:
        """Calls whose request is past them are over."""
        books = self._books
        for job in tuple(books.calls.values()):
            if job.call is not None and job.state not in _WITH_CALL:
                books.end(job, job.call)

    def _settle_parked(self) -> None:
        """Who is between two slices keeps its slot, or starts over; nobody else is on a replica without a call."""
        books = self._books
        for replica_id, job in tuple(books.longs.items()):
            holds = books.replicas[replica_id].parked_tokens > 0
            if job.state is State.PARKED and holds:
                continue
            if job.call is None or job.call.replica_id != replica_id:
                del books.longs[replica_id]
        parked = {id(job) for job in books.longs.values()}
        for job in books.jobs.values():
            if job.state is State.PARKED and id(job) not in parked:
                job.move(Event.UNPARK)
                job.computed_tokens = 0


def _came(job: Job) -> int:
    return job.seq
