"""The engine's promises over the fake model: what is generated, when it ends, what an abort or a failure does."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from backend.engine import EngineStoppedError
from backend.outputs import FinishReason
from backend.runner import RunnerRow
from backend.sampler import SampledToken, Sampler, SamplingParams
from backend.tokenizer import Detokenizer
from policies.batching import Composer
from policies.types import EngineLike, StepPlan, StepRow

from .collect import Collected, collect, run_all
from .fake_model import EOS, FakeTokenizer, expected_tokens, make_engine, request


def prompt(length: int, start: int = 1) -> list[int]:
    """Distinct prompts for distinct starts."""
    return [(start * 31 + i * 7) % 250 + 1 for i in range(length)]


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("max_num_batched_tokens", [8, 17, 64, 512])
@pytest.mark.parametrize("num_blocks", [24, 256])
def test_tokens_do_not_depend_on_batch_chunks_cache_or_preemption(
    enable_prefix_caching: bool, max_num_batched_tokens: int, num_blocks: int
) -> None:
    """Twelve sequences with shared prefixes give what each gives alone, in any setting."""
    engine, _, _, _ = make_engine(
        num_blocks=num_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
    )
    collected = collect(engine)
    prompts = [prompt(20, 5)[: 4 + i] + prompt(i, i) for i in range(1, 13)]
    engine.submit(request(str(i), ids, 30, arrival_s=float(i)) for i, ids in enumerate(prompts))
    run_all(engine)
    for i, ids in enumerate(prompts):
        assert collected.tokens(str(i)) == expected_tokens(ids, 30)
    assert engine.held_blocks == 0


def test_few_blocks_force_preemptions_that_are_counted() -> None:
    """The setting above with few blocks does preempt: the figure is on /metrics."""
    engine, _, _, metrics = make_engine(num_blocks=12)
    collected = collect(engine)
    engine.submit(request(str(i), prompt(8, i), 40, arrival_s=float(i), ignore_eos=True) for i in range(4))
    run_all(engine)
    for i in range(4):
        assert collected.tokens(str(i)) == expected_tokens(prompt(8, i), 40, ignore_eos=True)
    [line] = [line for line in metrics.render()[0].decode().splitlines() if "num_preemptions_total{" in line]
    assert float(line.split()[-1]) > 0


def test_a_cached_prompt_is_not_computed_again_except_its_last_token() -> None:
    """The second time 16 of 17 tokens are cached; of 16 tokens (four full blocks) the last block is computed."""
    engine, runner, _, _ = make_engine()
    collected = collect(engine)
    for name, length, cached in (("first", 17, 0), ("again", 17, 16), ("full", 16, 12)):
        runner.num_computed_tokens = 0
        engine.submit([request(name, prompt(length), 1)])
        run_all(engine)
        assert runner.num_computed_tokens == length - cached
        assert collected.last(name).timing.cached_prompt_tokens == cached


def test_a_salt_keeps_prompts_apart() -> None:
    """Equal salts share, other salts don't."""
    engine, _, _, _ = make_engine()
    collected = collect(engine)
    for name, salt in (("a", "x"), ("b", "y"), ("c", None), ("d", "x")):
        engine.submit([request(name, prompt(16), 1, cache_salt=salt)])
        run_all(engine)
    assert [collected.last(name).timing.cached_prompt_tokens for name in "abcd"] == [0, 0, 0, 12]


def test_choices_share_the_prompt_and_differ_by_seed() -> None:
    """Three choices compute the prompt once; seeded, they differ from each other and repeat in another run."""
    runs = []
    for _ in range(2):
        engine, runner, _, _ = make_engine()
        collected = collect(engine)
        sampling = SamplingParams(temperature=4.0, seed=7)
        engine.submit([request("r", prompt(40), 12, num_choices=3, sampling=sampling, first_choice=5, ignore_eos=True)])
        run_all(engine)
        runs.append([collected.tokens("r", choice) for choice in (5, 6, 7)])
        assert runner.num_computed_tokens == 40 + 2 * 4 + 3 * 11
    assert runs[0] == runs[1]
    assert len({tuple(tokens) for tokens in runs[0]}) == 3
    assert all(len(tokens) == 12 for tokens in runs[0])


def test_a_sampler_that_fails_for_one_row_fails_that_request_alone() -> None:
    """The others, seeded ones too, say what they say without it; all choices of the failed one end in one error."""

    class Failing(Sampler):
        def sample(
            self,
            logits: torch.Tensor,
            params: Sequence[SamplingParams],
            generators: Sequence[torch.Generator | None],
        ) -> list[SampledToken]:
            tokens = super().sample(logits, params, generators)
            if any(row.top_k == 13 and tokens for row in params) and next(steps) >= 3:
                raise RuntimeError("this row can't be sampled")
            return tokens

    def said(*, with_bad: bool) -> Collected:
        engine, _, _, _ = make_engine(sampler=Failing())
        collected = collect(engine)
        hot = {f"hot {seed}": SamplingParams(temperature=4.0, seed=seed) for seed in range(3)}
        requests = [
            request(name, prompt(5, 3), 20, sampling=sampling, ignore_eos=True) for name, sampling in hot.items()
        ]
        if with_bad:
            bad = SamplingParams(temperature=4.0, top_k=13)
            requests.insert(1, request("bad", prompt(9, 4), 20, sampling=bad, num_choices=2, ignore_eos=True))
        engine.submit(requests)
        run_all(engine)
        assert engine.held_blocks == 0
        return collected

    steps = itertools.count()
    alone, together = said(with_bad=False), said(with_bad=True)
    assert list(together.errors) == ["bad"]
    assert 0 < len(together.tokens("bad")) < 20
    for seed in range(3):
        assert together.tokens(f"hot {seed}") == alone.tokens(f"hot {seed}")
        assert len(alone.tokens(f"hot {seed}")) == 20


def test_a_detokenizer_that_fails_fails_its_request_alone() -> None:
    """What goes wrong after sampling is no other request's concern either, and the engine goes on."""

    class Failing:
        def push(self, token_id: int) -> str:
            raise RuntimeError("no text")

        def flush(self) -> str:
            return ""

    tokenizer: Any = FakeTokenizer()
    engine, _, _, _ = make_engine(new_detokenizer=lambda skip: Detokenizer(tokenizer) if skip else Failing())
    collected = collect(engine)
    engine.submit(
        [request("good", prompt(5), 6, ignore_eos=True), request("bad", prompt(6), 6, skip_special_tokens=False)]
    )
    run_all(engine)
    assert list(collected.errors) == ["bad"]
    assert len(collected.tokens("good")) == 6
    assert engine.held_blocks == 0


def test_max_tokens_ends_with_length() -> None:
    """Exactly so many tokens, the last one with the reason."""
    engine, _, _, _ = make_engine()
    collected = collect(engine)
    engine.submit([request("r", prompt(5), 7, ignore_eos=True)])
    run_all(engine)
    assert [output.finish_reason for output in collected.outputs["r", 0]] == [None] * 6 + [FinishReason.LENGTH]
    assert collected.last("r").num_output_tokens == 7


def find_prompt_that_ends(max_tokens: int) -> tuple[list[int], list[int]]:
    """A prompt whose answer ends by itself after a few tokens, and that answer."""
    for start in range(500):
        tokens = expected_tokens(prompt(6, start), max_tokens)
        if tokens[-1] == EOS and len(tokens) >= 4:
            return prompt(6, start), tokens
    raise AssertionError("no such prompt")


def test_the_end_token_stops_unless_ignored() -> None:
    """Without a stop reason, and its text isn't given out; with ignore_eos generation goes on."""
    ids, tokens = find_prompt_that_ends(20)
    engine, _, _, _ = make_engine()
    collected = collect(engine)
    engine.submit([request("stops", ids, 30), request("goes on", ids, 30, ignore_eos=True)])
    run_all(engine)
    assert collected.tokens("stops") == tokens
    assert collected.text("stops") == bytes(tokens[:-1]).decode()
    last = collected.last("stops")
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, None)
    assert collected.last("goes on").finish_reason is FinishReason.LENGTH


def test_min_tokens_makes_end_tokens_impossible_before() -> None:
    """The end token and stop ids are not sampled before min_tokens."""
    ids, tokens = find_prompt_that_ends(20)
    engine, _, _, _ = make_engine()
    collected = collect(engine)
    stop_token_ids = frozenset({tokens[0]})
    engine.submit([request("r", ids, 40, min_tokens=len(tokens) + 5, stop_token_ids=stop_token_ids)])
    run_all(engine)
    early = collected.tokens("r")[: len(tokens) + 4]
    assert EOS not in early
    assert tokens[0] not in early
    assert len(collected.tokens("r")) >= len(tokens) + 5


def test_a_stop_token_id_is_named_and_not_part_of_the_text() -> None:
    """The id asked for is the stop reason."""
    ids = prompt(6)
    tokens = expected_tokens(ids, 20)
    stop = tokens[4]
    first = tokens.index(stop)
    engine, _, _, _ = make_engine()
    collected = collect(engine)
    engine.submit([request("r", ids, 20, stop_token_ids=frozenset({stop}))])
    run_all(engine)
    assert collected.text("r") == bytes(tokens[:first]).decode()
    assert collected.last("r").stop_reason == stop


def test_a_stop_string_over_several_tokens_ends_the_text_before_it() -> None:
    """Found across tokens (a token is a letter here), named, and the rest is not computed."""
    ids = prompt(6)
    text = bytes(expected_tokens(ids, 20, ignore_eos=True)).decode()
    stop = text[5:8]
    engine, _, _, _ = make_engine()
    collected = collect(engine)
    engine.submit([request("r", ids, 20, stop=(stop, "never"), ignore_eos=True)])
    run_all(engine)
    assert collected.text("r") == text[: text.index(stop)]
    assert collected.last("r").stop_reason == stop
    assert len(collected.tokens("r")) == text.index(stop) + 3


def test_an_abort_takes_effect_before_the_next_step() -> None:
    """Blocks are back and nothing more is said; unknown ids and repeated aborts have no effect."""
    engine, runner, _, _ = make_engine()
    collected = collect(engine)
    engine.submit([request("stays", prompt(5), 20, ignore_eos=True), request("goes", prompt(9), 20, num_choices=2)])
    engine.run_pending()
    engine.run_pending()
    said = len(collected.tokens("goes"))
    engine.abort(["goes", "unknown"])
    engine.abort(["goes"])
    runner.before_forward = lambda rows: check(len(rows) == 1)
    run_all(engine)
    assert len(collected.tokens("goes")) == said
    assert len(collected.tokens("stays")) == 20
    assert engine.held_blocks == 0


def check(condition: bool) -> None:
    assert condition


def test_an_abort_of_a_waiting_request_removes_it() -> None:
    """It never runs."""
    engine, _, _, _ = make_engine(max_num_seqs=1)
    collected = collect(engine)
    engine.submit([request("runs", prompt(5), 5, ignore_eos=True), request("waits", prompt(5), 5, arrival_s=1.0)])
    engine.run_pending()
    assert engine.num_waiting == 1
    engine.abort(["waits"])
    run_all(engine)
    assert collected.tokens("waits") == []


def test_a_request_that_the_model_fails_on_fails_alone() -> None:
    """Those that were computed beside it, prefills and decodes, say what they say without it; all its choices end."""
    engine, runner, _, _ = make_engine()
    collected = collect(engine)

    def fail(rows: Sequence[RunnerRow]) -> None:
        if any(row.start_position + len(row.token_ids) == 12 and row.token_ids[-1] == 77 for row in rows):
            raise RuntimeError("planted")

    runner.before_forward = fail
    engine.submit(
        [
            request("decodes", prompt(5), 20, ignore_eos=True),
            request("bad", [*prompt(11, 4), 77], 20, num_choices=2),
            request("beside", prompt(30, 6), 20, ignore_eos=True),
        ]
    )
    run_all(engine)
    assert list(collected.errors) == ["bad"]
    assert collected.tokens("bad") == []
    assert collected.tokens("decodes") == expected_tokens(prompt(5), 20, ignore_eos=True)
    assert collected.tokens("beside") == expected_tokens(prompt(30, 6), 20, ignore_eos=True)
    assert engine.held_blocks == 0


def test_a_failing_step_fails_its_requests_only_and_the_engine_goes_on() -> None:
    """Those in the step get an error, those waiting run later, blocks come back."""
    engine, runner, _, metrics = make_engine(max_num_seqs=2)
    collected = collect(engine)

    def fail(rows: Sequence[RunnerRow]) -> None:
        raise RuntimeError("planted")

    runner.before_forward = fail
    engine.submit(request(name, prompt(5), 5, arrival_s=float(i)) for i, name in enumerate(["a", "b", "waits"]))
    engine.run_pending()
    runner.before_forward = lambda rows: None
    run_all(engine)
    assert set(collected.errors) == {"a", "b"}
    assert "planted" not in collected.errors["a"]
    assert collected.tokens("waits") == expected_tokens(prompt(5), 5)
    assert engine.held_blocks == 0
    assert b"tailgate_backend_requests_failed_total" in metrics.render()[0]


@pytest.mark.parametrize(
    ("prompt_ids", "max_tokens"), [([], 1), ([1], 0), (list(range(1, 11)), 7)], ids=["empty", "none", "too long"]
)
def test_a_request_that_could_never_run_is_refused(prompt_ids: list[int], max_tokens: int) -> None:
    """An empty prompt, nothing to generate, or more than the context."""
    engine, _, _, _ = make_engine(max_model_len=16)
    with pytest.raises(ValueError, match="each must be at least 1 and together at most 16"):
        engine.submit([request("r", prompt_ids, max_tokens)])


def test_a_context_larger_than_the_cache_is_refused() -> None:
    """One sequence must fit alone, or it could never finish."""
    with pytest.raises(ValueError, match="the KV cache holds 16"):
        make_engine(num_blocks=4, block_size=4, max_model_len=17)


def test_a_budget_smaller_than_the_batch_is_refused() -> None:
    """Every running sequence may want a token in every step."""
    with pytest.raises(ValueError, match="at least max_num_seqs"):
        make_engine(max_num_batched_tokens=4, max_num_seqs=5)


class Broken:
    """A composer with a fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def compose(self, engine: EngineLike) -> StepPlan:
        if self._fault == "raises":
            raise KeyError("planted")
        if self._fault == "unknown":
            return StepPlan(rows=(StepRow(999, 1),))
        return StepPlan()


@pytest.mark.parametrize("fault", ["raises", "unknown", "idle"])
def test_a_broken_composer_is_replaced_for_the_step_and_counted(fault: str) -> None:
    """Requests are served as if by chunked FCFS; every bad plan is counted."""
    composer: Composer = Broken(fault)
    engine, runner, _, metrics = make_engine(composer=composer)
    collected = collect(engine)
    engine.submit([request("r", prompt(5), 5, ignore_eos=True)])
    run_all(engine)
    assert len(collected.tokens("r")) == 5
    [line] = [line for line in metrics.render()[0].decode().splitlines() if "policy_errors_total{" in line]
    assert float(line.split()[-1]) == runner.num_steps == 5


def test_timing_is_contiguous() -> None:
    """Arrival, scheduled, first and last token follow each other, and metrics count the request."""
    engine, _, _, metrics = make_engine()
    collected = collect(engine)
    engine.submit([request("r", prompt(5), 5, ignore_eos=True)])
    run_all(engine)
    timing = collected.last("r").timing
    assert timing.arrival_s < timing.scheduled_s < timing.first_token_s < timing.last_token_s
    assert timing.queue_s + timing.prefill_s + timing.decode_s == pytest.approx(timing.last_token_s - timing.arrival_s)
    lines = metrics.render()[0].decode().splitlines()
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="fake"} 1.0' in lines
    assert 'vllm:generation_tokens_total{engine="0",model_name="fake"} 5.0' in lines


def test_the_thread_serves_stops_and_refuses_afterwards() -> None:
    """A started engine answers; stopping fails what is left and later submissions, and is idempotent."""
    engine, runner, _, _ = make_engine()
    first_step, go_on = threading.Event(), threading.Event()
    collected = collect(engine)

    def hold(rows: Sequence[RunnerRow]) -> None:
        first_step.set()
        go_on.wait(10.0)

    runner.before_forward = hold
    engine.start()
    was_alive = engine.is_alive
    engine.submit([request("r", prompt(5), 100, ignore_eos=True)])
    assert first_step.wait(10.0)
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    go_on.set()
    stopper.join(10.0)
    engine.stop()
    assert was_alive
    assert not engine.is_alive
    assert collected.errors == {"r": "the engine was stopped"}
    assert engine.held_blocks == 0
    with pytest.raises(EngineStoppedError):
        engine.submit([request("late", prompt(5), 1)])


def test_a_planning_failure_fails_everything_once() -> None:
    """When even the fallback can't plan, every request gets an error instead of an endless loop."""
    engine, _, scheduler, _ = make_engine(composer=Broken("idle"))
    collected = collect(engine)
    scheduler._fallback = Broken("idle")  # type: ignore[assignment]
    engine.submit([request("a", prompt(5), 5), request("b", prompt(5), 5)])
    run_all(engine)
    assert set(collected.errors) == {"a", "b"}
