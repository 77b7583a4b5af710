"""What a request is expected to cost and where that puts it; what it did cost, and what is learned from that."""

from .job import Job
from .policy import Policy
from .types import Outcome, Sample


def estimate(policy: Policy, job: Job) -> None:
    """Predict output, cost and budget, and from them the key that orders it."""
    request = job.request
    job.predicted_output_tokens = policy.output.predict(request)
    job.cost_s = policy.cost.cost_s(request.prompt_tokens, job.predicted_output_tokens)
    job.budget_tokens = policy.cost.budget_tokens(request.prompt_tokens, job.predicted_output_tokens)
    job.key = policy.ordering.key(arrival_s=request.arrival_s, cost_s=job.cost_s)


def classify(policy: Policy, job: Job) -> None:
    """Put it into a lane, of which the lanes learn nothing: a request counts once."""
    decision = policy.lanes.classify(job.request, job.budget_tokens)
    job.lane, job.lane_why = decision.lane, decision.why


def enlist(policy: Policy, job: Job) -> None:
    """Put it into a lane, and let the lanes learn from it."""
    decision = policy.lanes.classify(job.request, job.budget_tokens)
    policy.lanes.observe(decision, job.request, job.budget_tokens)
    job.lane, job.lane_why = decision.lane, decision.why


def settle(policy: Policy, job: Job, outcome: Outcome, sample: Sample) -> None:
    """Learn from what the request really cost, and correct what its lane was charged."""
    request = job.request
    actual_s = 0.0 if outcome is Outcome.DROPPED else job.charged_s
    if outcome is Outcome.SUCCESS and sample.output_tokens is not None:
        policy.output.learn(request, sample.output_tokens)
        computed_tokens = (sample.prompt_tokens or request.prompt_tokens) - (sample.cached_tokens or 0)
        actual_s = policy.cost.cost_s(computed_tokens, sample.output_tokens)
    assert job.charged_to is not None  # every call was charged when it was dispatched
    job.charged_to.charge(job.lane, actual_s - job.charged_s)
    job.charged_to = None
