"""The engine under random arrivals, aborts, failures and preemptions: no leak, and always the right tokens."""

import random
from collections.abc import Sequence

import pytest

from backend.runner import RunnerRow
from backend.sequence import GenerationRequest
from policies.batching import COMPOSERS, StepSpec, build_composer

from .collect import collect
from .fake_model import expected_tokens, make_engine, request


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", ["fcfs", "priority"])
@pytest.mark.parametrize("composer", COMPOSERS.names())
def test_random_load_leaves_nothing_behind(seed: int, order: str, composer: str) -> None:
    """After every step the books balance, no plan breaks a rule; finished requests have the tokens they have alone."""
    print(f"seed {seed} order {order}")
    chance = random.Random(f"{seed} {order}")
    now_s = 0.0
    levels = {"first_quantum_s": 2.0, "promote_after_s": 20.0, "prefill_s_per_token": 0.2, "decode_s_per_token": 1.0}
    options = {"sj-mlfq": levels} if composer == "sj-mlfq" else {}
    engine, runner, scheduler, _ = make_engine(
        num_blocks=chance.randint(16, 40),
        block_size=chance.choice([2, 4]),
        max_num_batched_tokens=chance.choice([6, 16, 48]),
        max_num_seqs=6,
        max_model_len=32,
        enable_prefix_caching=chance.random() < 0.7,
        composer=build_composer(StepSpec(composer, order, options)),
        clock=lambda: now_s,
    )
    collected = collect(engine)
    shared = [chance.randrange(1, 256) for _ in range(20)]
    submitted: dict[str, GenerationRequest] = {}
    aborted: set[str] = set()

    def maybe_fail(rows: Sequence[RunnerRow]) -> None:
        if chance.random() < 0.01:
            raise RuntimeError("planted")

    runner.before_forward = maybe_fail
    for step in range(400):
        now_s = float(step)
        while len(submitted) < 60 and chance.random() < 0.3:
            name = str(len(submitted))
            prompt = shared[: chance.randint(0, 14)] + [chance.randrange(1, 256) for _ in range(chance.randint(1, 4))]
            submitted[name] = request(
                name,
                prompt,
                chance.randint(1, 12),
                arrival_s=float(step),
                num_choices=chance.choice([1, 1, 1, 3]),
                priority=chance.randint(-1, 1),
                cache_salt=chance.choice([None, "salt"]),
            )
            engine.submit([submitted[name]])
        if submitted and chance.random() < 0.1:
            name = chance.choice(list(submitted))
            engine.abort([name])
            aborted.add(name)
        engine.run_pending()
        engine.check_integrity()
    runner.before_forward = lambda rows: None
    for _ in range(3000):
        if not engine.run_pending():
            break
        engine.check_integrity()
    assert not scheduler.has_work
    assert engine.held_blocks == 0
    for name, wanted in submitted.items():
        expected = expected_tokens(wanted.prompt_token_ids, wanted.max_tokens)
        for choice in range(wanted.num_choices):
            tokens = collected.tokens(name, choice)
            if name in aborted or name in collected.errors:
                assert tokens == expected[: len(tokens)]
            else:
                assert tokens == expected
    assert scheduler.num_policy_errors == 0
    assert len(aborted) > 5
