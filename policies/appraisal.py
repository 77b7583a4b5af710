"""What a request is expected to cost and where that puts it; what it did cost, and what is learned from that."""

from typing import Final

from . import objectives
from .admission.port import Answered
from .estimate.timing import CallTiming
from .job import Job, RunningCall
from .lanes import LaneDecision
from .lifecycle import State
from .policy import Policy
from .slots import ReplicaSlots
from .types import Lane, Outcome, Sample

# For every request: see `policies.types`.
_DROPPED: Final = Outcome.DROPPED
_SUCCESS: Final = Outcome.SUCCESS
_WAITING: Final = State.WAITING


def estimate(policy: Policy, job: Job) -> None:
    """Predict output, cost and budget."""
    request = job.request
    job.flow = policy.turns.flows.key(request)
    job.predicted_output_tokens = policy.output.predict(request)
    if (request.can_be_sliced or job.long is not None) and job.state is _WAITING:
        job.set_long(request.can_be_sliced and policy.slicing.is_long(policy.prefills.typical_s(request.prompt_tokens)))
    job.cost_s = policy.cost.cost_s(request.prompt_tokens, job.predicted_output_tokens)
    job.budget_tokens = policy.cost.budget_tokens(request.prompt_tokens, job.predicted_output_tokens)


def classify(policy: Policy, job: Job) -> LaneDecision:
    """Put it into a lane and in order there; nobody learns anything from it, since a request counts once."""
    decision = policy.lanes.classify(job.request, job.budget_tokens)
    job.lane = job.own_lane = decision.lane
    job.lane_why = decision.why
    if job.ruling.lane is not None:
        job.lane, job.lane_why = job.ruling.lane, "downgraded: more comes than can be served"
    order(policy, job)
    return decision


def enlist(policy: Policy, job: Job) -> None:
    """Put it into a lane and in order there, and learn from it: also from one that is turned away then.

    Else the cuts would follow what overload leaves, and lanes would narrow step by step.
    """
    decision = classify(policy, job)
    policy.lanes.observe(decision, job.request, job.budget_tokens)
    policy.traffic.arrived(job.request.arrival_s)


def order(policy: Policy, job: Job) -> None:
    """Give it the key that it waits with."""
    arrival_s = job.request.arrival_s + job.ruling.defer_s
    is_declared = job.own_lane is Lane.INTERACTIVE and job.request.declared_lane is Lane.INTERACTIVE
    cost_s = 0.0 if is_declared else job.cost_s
    lateness = policy.ordering.lateness
    if lateness is None:
        job.key = policy.ordering.key(arrival_s=arrival_s, cost_s=cost_s)
        return
    due_s = objectives.due_s(job.request, policy.objectives[job.own_lane])
    if due_s is None:
        due_s = job.request.arrival_s + lateness.within_s
    job.is_late = False
    job.start_by_s = due_s - policy.cost.cost_s(job.request.prompt_tokens, 0)
    job.key = policy.ordering.key(arrival_s=arrival_s, cost_s=cost_s, due_s=due_s + job.ruling.defer_s)


def time(policy: Policy, job: Job, call: RunningCall, slots: ReplicaSlots, sample: Sample, now_s: float) -> None:
    """Learn how fast its replica is, from a call that ends now and still holds its slot."""
    timing = CallTiming(
        call.ahead_tokens - (sample.cached_tokens or 0),
        (call.num_beside + len(slots.calls)) / 2,
        sample.upstream_ttft_s,
        sample.tpot_s if job.request.num_choices == 1 else None,  # several choices make several tokens a step
        (sample.output_tokens or 1) - 1,
        slots.computed_tokens - call.computed_before_tokens,
    )
    policy.cost.learn(call.replica_id, timing, now_s)
    policy.admission.answered(
        slots.replica, Answered(timing, call.slot_tokens, slots.in_flight_tokens, call.began_s, now_s)
    )


def forget(policy: Policy, replica_id: str) -> None:
    """The replica is gone, and what was learned of it."""
    policy.cost.forget(replica_id)
    policy.admission.forget(replica_id)
    policy.prefills.forget(replica_id)


def settle(policy: Policy, job: Job, outcome: Outcome, sample: Sample) -> None:
    """Learn from what the request really cost, and correct what its lane was charged."""
    request = job.request
    actual_s = 0.0 if outcome is _DROPPED else job.charged_s
    if outcome is _SUCCESS and sample.output_tokens is not None:
        policy.output.learn(request, sample.output_tokens)
        if sample.output_tokens > job.output_tokens:
            policy.turns.flows.charge(job.flow, 0, sample.output_tokens - job.output_tokens)
        computed_tokens = (sample.prompt_tokens or request.prompt_tokens) - (sample.cached_tokens or 0)
        actual_s = policy.cost.cost_s(computed_tokens, sample.output_tokens)
        if job.cost_s > 0.0 and actual_s > 0.0:
            policy.traffic.erred(job.cost_s, actual_s)
        policy.traffic.ended(actual_s)
        budget_tokens = policy.cost.budget_tokens(computed_tokens, sample.output_tokens)
        budgets = (job.budget_tokens, budget_tokens)
        policy.traffic.calibration.add(job.predicted_output_tokens, sample.output_tokens, budgets, policy.lanes.cuts())
    assert job.charged_to is not None  # every call was charged when it was dispatched
    job.charged_to.charge(job.lane, actual_s - job.charged_s)
    job.charged_to = None
