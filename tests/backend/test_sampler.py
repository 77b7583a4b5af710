"""Sampling follows the distribution that its parameters describe, whoever else is in the batch."""

import math
from collections import Counter

import pytest
import torch

from backend.sampler import SampledToken, Sampler, SamplingParams

SEED = 5
PROBABILITIES = [0.5, 0.25, 0.125, 0.0625, 0.0625]
LOGITS = torch.tensor(PROBABILITIES).log()
NUM_DRAWS = 20_000


def draw(params: SamplingParams, num_draws: int = NUM_DRAWS, logits: torch.Tensor = LOGITS) -> Counter[int]:
    """Tokens of many independent rows."""
    torch.manual_seed(SEED)
    sampled = Sampler().sample(logits.expand(num_draws, -1), [params] * num_draws, [None] * num_draws)
    return Counter(token.token_id for token in sampled)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), PROBABILITIES),
        (SamplingParams(temperature=2.0), [math.sqrt(p) for p in PROBABILITIES]),
        (SamplingParams(temperature=0.5), [p * p for p in PROBABILITIES]),
        (SamplingParams(top_k=2), [0.5, 0.25]),
        (SamplingParams(top_k=99), PROBABILITIES),
        (SamplingParams(top_k=1 << 63), PROBABILITIES),
        (SamplingParams(top_k=1 << 63, top_p=0.75), [0.5, 0.25]),
        (SamplingParams(top_p=0.75), [0.5, 0.25]),
        (SamplingParams(top_p=0.76), [0.5, 0.25, 0.125]),
        (SamplingParams(top_p=0.01), [1.0]),
        (SamplingParams(min_p=0.2), [0.5, 0.25, 0.125]),
        (SamplingParams(min_p=1.0), [1.0]),
        (SamplingParams(top_k=3, top_p=0.6), [0.5, 0.25]),  # of 0.875 that top_k leaves, 0.6 is 0.525
        (SamplingParams(top_k=3, top_p=0.5), [1.0]),
    ],
)
def test_frequencies_are_the_distributions(params: SamplingParams, expected: list[float]) -> None:
    """Over many draws, tokens come as often as temperature and cuts say, and cut ones never (5 standard errors)."""
    counts = draw(params)
    assert set(counts) <= set(range(len(expected))), f"seed {SEED}"
    for token_id, weight in enumerate(expected):
        p = weight / sum(expected)
        assert abs(counts[token_id] / NUM_DRAWS - p) <= 5 * math.sqrt(p * (1 - p) / NUM_DRAWS) + 1e-9, f"seed {SEED}"


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-5])
def test_no_temperature_is_greedy(temperature: float) -> None:
    """At temperature 0 the likeliest token comes always; at a tiny one too, without overflow."""
    assert draw(SamplingParams(temperature=temperature), 50, LOGITS * 1000) == {0: 50}


def test_impossible_tokens_are_never_drawn() -> None:
    """A logit of -inf has no chance at any temperature, wherever it stands."""
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    assert set(draw(SamplingParams(temperature=5.0), 2000, logits)) == {1, 3}


@pytest.mark.parametrize("vocab_size", [300, 5000, 6000])
def test_flat_distributions_keep_all_they_should(vocab_size: int) -> None:
    """Where few candidates don't reach top_p the search widens: every token of the nucleus can come, no other."""
    logits = torch.arange(vocab_size, 0, -1, dtype=torch.float32).log()
    probabilities = logits.softmax(0).double()
    nucleus = int((probabilities.cumsum(0) - probabilities < 0.9).sum())
    counts = draw(SamplingParams(top_p=0.9), 1000, logits)
    assert max(counts) < nucleus
    assert max(counts) > 0.9 * nucleus


def test_a_seed_fixes_a_sequence_whatever_the_batch() -> None:
    """A seeded sequence draws the same tokens alone, among others, at another place in the batch; others are random."""
    logits = torch.randn(40, generator=torch.Generator().manual_seed(SEED))
    seeded, free = SamplingParams(seed=42, top_p=0.95), SamplingParams()

    def run(params: list[SamplingParams], place: int) -> list[int]:
        generators = [p.generator() for p in params]
        steps = [Sampler().sample(logits.expand(len(params), -1), params, generators) for _ in range(30)]
        return [step[place].token_id for step in steps]

    alone = run([seeded], 0)
    assert run([free, free, seeded], 2) == alone
    assert run([seeded, SamplingParams(seed=1), SamplingParams(temperature=0)], 0) == alone
    assert run([SamplingParams(seed=43, top_p=0.95)], 0) != alone
    assert run([free], 0) != run([free], 0)


def test_mixed_rows_keep_their_own_params() -> None:
    """Greedy, cut and free rows in one batch each follow their own parameters."""
    params = [
        SamplingParams(temperature=0),
        SamplingParams(top_k=1),
        SamplingParams(min_p=1.0),
        SamplingParams(top_p=0.1),
    ]
    logits = torch.stack([LOGITS.roll(shift) for shift in range(4)])
    assert [t.token_id for t in Sampler().sample(logits, params, [None] * 4)] == [0, 1, 2, 3]


def test_logprobs_are_the_models_own() -> None:
    """Log-probabilities are those before temperature and cuts: of the chosen token and the likeliest, best first."""
    params = [
        SamplingParams(temperature=0.1, top_k=1, num_logprobs=2),
        SamplingParams(temperature=0, num_logprobs=0),
        SamplingParams(temperature=0, num_logprobs=99),
        SamplingParams(temperature=0),
    ]
    two, none, many, unasked = Sampler().sample(LOGITS.expand(4, -1), params, [None] * 4)
    assert two.logprob == pytest.approx(math.log(0.5), abs=1e-6)
    assert [token_id for token_id, _ in two.top] == [0, 1]
    assert two.top[1][1] == pytest.approx(math.log(0.25), abs=1e-6)
    assert none.logprob == two.logprob
    assert none.top == ()
    assert len(many.top) == len(PROBABILITIES)
    assert unasked == SampledToken(0)


def test_nothing_to_sample() -> None:
    """No rows, no tokens."""
    assert Sampler().sample(torch.empty(0, 5), [], []) == []


def test_rows_and_params_must_match() -> None:
    """A different number of rows, parameters or generators is an error."""
    with pytest.raises(ValueError, match="2 rows of logits, 1 params"):
        Sampler().sample(LOGITS.expand(2, -1), [SamplingParams()], [None])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("seed", 2**63),
        ("num_logprobs", -1),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: float) -> None:
    """The error names the field, its value and what is allowed."""
    with pytest.raises(ValueError, match=rf"^{field} is .*; allowed: "):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
