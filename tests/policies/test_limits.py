"""What a key may use: buckets, reservations, and that nothing is lost or given back twice."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.lifecycle import LifecycleError
from policies.limits import Account, CreditBucket, Limit, LimitSpec, Refusal, Standing


class TestCreditBucket:
    def test_starts_full_and_refills_evenly(self) -> None:
        """A minute's worth at once, then one every 60 s / capacity."""
        bucket = CreditBucket(6, 100.0)
        assert [bucket.wait_s(1, 100.0), bucket.credits(100.0)] == [0.0, 6.0]
        bucket.take(6, 100.0)
        assert bucket.wait_s(1, 100.0) == pytest.approx(10.0)
        assert bucket.credits(105.0) == pytest.approx(0.5)
        assert bucket.credits(1000.0) == 6.0

    def test_time_that_runs_back_changes_nothing(self) -> None:
        """Neither a refill nor a loss."""
        bucket = CreditBucket(60, 100.0)
        bucket.take(30, 100.0)
        assert bucket.credits(50.0) == 30.0
        assert bucket.credits(101.0) == pytest.approx(31.0)

    def test_more_than_fits_waits_for_a_full_bucket(self) -> None:
        """And leaves a debt, which the refill pays."""
        bucket = CreditBucket(60, 0.0)
        bucket.take(10, 0.0)
        assert bucket.wait_s(1000, 0.0) == pytest.approx(10.0)
        bucket.take(100, 10.0)
        assert bucket.credits(10.0) == pytest.approx(-40.0)
        assert bucket.wait_s(1, 10.0) == pytest.approx(41.0)

    def test_giving_back_never_overfills(self) -> None:
        """Credits beyond the capacity are lost."""
        bucket = CreditBucket(10, 0.0)
        bucket.take(4, 0.0)
        bucket.take(-50, 0.0)
        assert bucket.credits(0.0) == 10.0

    def test_resizing_keeps_the_share_and_the_debt(self) -> None:
        """A raised limit isn't refilled, a lowered one isn't a punishment, and debts stay."""
        bucket = CreditBucket(100, 0.0)
        bucket.take(50, 0.0)
        bucket.resize(10, 0.0)
        assert bucket.credits(0.0) == 5.0
        bucket.take(25, 0.0)
        bucket.resize(1000, 0.0)
        assert bucket.credits(0.0) == -20.0

    def test_standing_says_whole_credits_and_seconds(self) -> None:
        """Nothing below zero is shown; the reset is when all of it is there."""
        bucket = CreditBucket(60, 0.0)
        bucket.take(1.5, 0.0)
        assert bucket.standing(0.0) == Standing(60, 58, 1.5)
        bucket.take(100, 0.0)
        assert bucket.standing(0.0).remaining == 0

    @given(
        capacity=st.integers(1, 10**9),
        spent=st.floats(0, 1, exclude_max=False),
        amount=st.integers(1, 10**9),
        start_s=st.floats(0, 1e7),
    )
    def test_waiting_as_told_is_enough(self, capacity: int, spent: float, amount: int, start_s: float) -> None:
        """After the seconds it names, the same request passes; a little before, it doesn't."""
        bucket = CreditBucket(capacity, start_s)
        bucket.take(capacity * spent, start_s)
        wait_s = bucket.wait_s(amount, start_s)
        if wait_s > 0.1:
            assert CreditBucket.wait_s(bucket, amount, start_s + wait_s * 0.9) > 0.0
        assert bucket.wait_s(amount, start_s + wait_s + 1e-6) == 0.0


class TestAccount:
    def test_without_limits_nothing_is_refused(self) -> None:
        """It still counts what is in flight."""
        account = Account(LimitSpec(), 0.0)
        for name in "abc":
            assert account.enter(name, 0.0) is None
            assert account.reserve(name, 10**9, 10**9, 0.0) is None
        assert (account.num_in_flight, account.in_flight_tokens) == (3, 6 * 10**9)
        for name in "abc":
            account.leave(name, 5, 0.0)
        assert (account.num_in_flight, account.in_flight_tokens) == (0, 0)
        assert account.requests_standing(0.0) is account.tokens_standing(0.0) is None

    def test_requests_per_minute(self) -> None:
        """As many as the limit, then a refusal that says when; what wasn't served doesn't count."""
        account = Account(LimitSpec(requests_per_min=2), 0.0)
        assert account.enter("a", 0.0) is None
        assert account.enter("b", 0.0) is None
        assert account.enter("c", 0.0) == Refusal(Limit.REQUESTS_PER_MIN, 2, 30.0)
        account.leave("a", None, 0.0)
        assert account.enter("c", 0.0) is None
        account.leave("b", 0, 0.0)
        assert account.enter("d", 0.0) == Refusal(Limit.REQUESTS_PER_MIN, 2, 30.0)
        assert account.requests_standing(15.0) == Standing(2, 0, 45.0)

    def test_requests_in_flight(self) -> None:
        """A refused request takes no credit of the other limit either."""
        account = Account(LimitSpec(max_in_flight_requests=1, requests_per_min=10), 0.0)
        assert account.enter("a", 0.0) is None
        assert account.enter("b", 0.0) == Refusal(Limit.IN_FLIGHT_REQUESTS, 1, 0.0)
        assert account.requests_standing(0.0) == Standing(10, 9, 6.0)
        account.leave("a", 1, 0.0)
        assert account.enter("b", 0.0) is None

    def test_tokens_per_minute_are_settled_by_what_was_used(self) -> None:
        """Reserved at most, charged as used, and a debt where the answer was longer than thought."""
        account = Account(LimitSpec(tokens_per_min=600), 0.0)
        account.enter("a", 0.0)
        assert account.reserve("a", 100, 400, 0.0) is None
        account.enter("b", 0.0)
        assert account.reserve("b", 100, 100, 0.0) == Refusal(Limit.TOKENS_PER_MIN, 600, 10.0)
        account.leave("a", 150, 0.0)
        assert account.tokens_standing(0.0) == Standing(600, 450, 15.0)
        assert account.reserve("b", 100, 100, 0.0) is None
        account.leave("b", 1000, 0.0)
        account.enter("c", 0.0)
        assert account.reserve("c", 1, 0, 0.0) == Refusal(Limit.TOKENS_PER_MIN, 600, 55.1)

    def test_tokens_in_flight(self) -> None:
        """The sum over running requests; one alone may claim more than the limit, if its prompt fits."""
        account = Account(LimitSpec(max_in_flight_tokens=1000), 0.0)
        for name in "ab":
            account.enter(name, 0.0)
        assert account.reserve("a", 600, 9_000, 0.0) is None
        assert account.reserve("b", 1, 0, 0.0) == Refusal(Limit.IN_FLIGHT_TOKENS, 1000, 0.0)
        account.leave("a", 10, 0.0)
        assert account.reserve("b", 1, 0, 0.0) is None

    @pytest.mark.parametrize(
        ("spec", "limit"),
        [
            (LimitSpec(tokens_per_min=100), Limit.TOKENS_PER_MIN),
            (LimitSpec(max_in_flight_tokens=100), Limit.IN_FLIGHT_TOKENS),
        ],
    )
    def test_a_prompt_over_the_limit_is_refused_for_good(self, spec: LimitSpec, limit: Limit) -> None:
        """Waiting would never help, so no time is named."""
        account = Account(spec, 0.0)
        account.enter("a", 0.0)
        assert account.reserve("a", 101, 0, 0.0) == Refusal(limit, 100, None)
        assert account.reserve("a", 100, 10_000, 0.0) is None

    def test_what_breaks_the_order_raises_and_changes_nothing(self) -> None:
        """Entering twice, reserving twice or outside, leaving twice."""
        account = Account(LimitSpec(requests_per_min=10, tokens_per_min=600), 0.0)
        account.enter("a", 0.0)
        account.reserve("a", 60, 0, 0.0)
        before = (account.requests_standing(0.0), account.tokens_standing(0.0), account.in_flight_tokens)
        wrongs: list[Callable[[], object]] = [
            lambda: account.enter("a", 0.0),
            lambda: account.reserve("a", 1, 1, 0.0),
            lambda: account.reserve("b", 1, 1, 0.0),
            lambda: account.leave("b", None, 0.0),
        ]
        for wrong in wrongs:
            with pytest.raises(LifecycleError):
                wrong()
        assert before == (account.requests_standing(0.0), account.tokens_standing(0.0), account.in_flight_tokens)
        account.leave("a", 0, 0.0)
        with pytest.raises(LifecycleError, match="left already"):
            account.leave("a", 0, 0.0)

    def test_limits_that_change_while_requests_run(self) -> None:
        """What was used stays used, and a bucket gets back only what came out of it."""
        account = Account(LimitSpec(requests_per_min=10, tokens_per_min=1000), 0.0)
        account.enter("a", 0.0)
        account.reserve("a", 500, 0, 0.0)
        account.set_spec(LimitSpec(requests_per_min=100, tokens_per_min=100), 0.0)
        assert account.requests_standing(0.0) == Standing(100, 90, 6.0)
        assert account.tokens_standing(0.0) == Standing(100, 50, 30.0)
        account.set_spec(LimitSpec(), 0.0)
        account.enter("b", 0.0)
        account.reserve("b", 500, 0, 0.0)
        account.set_spec(LimitSpec(requests_per_min=1, tokens_per_min=1000), 0.0)
        account.enter("c", 0.0)
        account.reserve("c", 1000, 0, 0.0)
        for name in "ab":
            account.leave(name, None, 0.0)
        assert account.requests_standing(0.0) == Standing(1, 0, 60.0)
        assert account.tokens_standing(0.0) == Standing(1000, 0, 60.0)


LIMITS = st.none() | st.integers(1, 500)
SPECS = st.builds(LimitSpec, LIMITS, LIMITS, st.none() | st.integers(1, 5), LIMITS)


class AccountMachine(RuleBasedStateMachine):
    """Requests come, reserve and leave in any order at any time, while limits stay as they are."""

    @initialize(spec=SPECS)
    def begin(self, spec: LimitSpec) -> None:
        self.now_s = 0.0
        self.spec = spec
        self.account = Account(spec, 0.0)
        self.entered: dict[str, int | None] = {}
        self.num_made = 0
        self.num_served = 0
        self.used_tokens = 0
        self.overfull_tokens = 0

    @rule(step_s=st.floats(0, 100))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    @rule()
    def enter(self) -> None:
        name = f"q{self.num_made}"
        self.num_made += 1
        refusal = self.account.enter(name, self.now_s)
        if refusal is None:
            self.entered[name] = None
        else:
            assert refusal.limit in (Limit.REQUESTS_PER_MIN, Limit.IN_FLIGHT_REQUESTS)
            assert name not in self.account._held

    @precondition(lambda self: None in self.entered.values())
    @rule(prompt=st.integers(0, 400), output=st.integers(0, 400))
    def reserve(self, prompt: int, output: int) -> None:
        name = next(name for name, tokens in self.entered.items() if tokens is None)
        if self.account.reserve(name, prompt, output, self.now_s) is None:
            self.entered[name] = prompt + output
            if self.spec.tokens_per_min is not None:
                self.overfull_tokens = max(self.overfull_tokens, prompt + output - self.spec.tokens_per_min)

    @precondition(lambda self: self.entered)
    @rule(data=st.data(), share=st.floats(0, 1), is_served=st.booleans())
    def leave(self, data: st.DataObject, share: float, is_served: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.entered)))
        held_tokens = self.entered.pop(name) or 0
        used_tokens = int(held_tokens * share) if is_served else None
        self.account.leave(name, used_tokens, self.now_s)
        self.num_served += is_served
        self.used_tokens += used_tokens or 0

    @invariant()
    def the_books_agree(self) -> None:
        """In flight is exactly what the model says, and never more than the limit, but for one alone."""
        self.account.check_integrity()
        assert self.account.num_in_flight == len(self.entered)
        held = [tokens for tokens in self.entered.values() if tokens is not None]
        assert self.account.in_flight_tokens == sum(held)
        if self.spec.max_in_flight_requests is not None:
            assert len(self.entered) <= self.spec.max_in_flight_requests
        if self.spec.max_in_flight_tokens is not None and sum(map(bool, held)) > 1:
            assert sum(held) <= self.spec.max_in_flight_tokens

    @invariant()
    def no_more_than_a_minutes_worth_and_the_refill(self) -> None:
        """Served requests and used tokens over all time are bounded by the rate, whatever was claimed and returned."""
        minutes = self.now_s / 60.0
        if self.spec.requests_per_min is not None:
            running = len(self.entered)
            assert self.num_served + running <= self.spec.requests_per_min * (1.0 + minutes) + 1e-3
        if self.spec.tokens_per_min is not None:
            held = sum(tokens or 0 for tokens in self.entered.values())
            bound = self.spec.tokens_per_min * (1.0 + minutes) + self.overfull_tokens + 1e-3
            assert self.used_tokens + held <= bound


TestAccountMachine = AccountMachine.TestCase
