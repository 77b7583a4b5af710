"""How fast replicas are found to be, and what a request costs by that."""

import itertools
import random

import pytest

from policies.estimate.cost import CostModel
from policies.estimate.fit import RobustFit
from policies.estimate.timing import CallTiming

SECONDS = itertools.count()


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


class TestRobustFit:
    """Points of a line: the first rate is what it begins at, the second its slope."""

    def line(self, slope: float = 1e-4) -> RobustFit:
        return RobustFit(0.0, slope)

    def feed(self, fit: RobustFit, rng: random.Random, count: int, slope: float, *, outliers: float = 0.0) -> None:
        for _ in range(count):
            x = rng.uniform(10, 4000)
            y = (0.02 + slope * x) * rng.uniform(0.95, 1.05)
            fit.add((1.0, x), y * 50 if rng.random() < outliers else y)

    @pytest.mark.parametrize("slope", [1e-6, 1e-4, 1e-2])
    def test_finds_the_line_however_wrong_the_prior_was(self, rng: random.Random, slope: float) -> None:
        """Within a tenth after two hundred points, a hundred times off or not."""
        fit = self.line()
        assert fit.at((1.0, 1000.0)) == pytest.approx(0.1)
        self.feed(fit, rng, 200, slope)
        assert fit.at((1.0, 2000.0)) == pytest.approx(0.02 + slope * 2000, rel=0.1)

    def test_tells_three_quantities_apart(self, rng: random.Random) -> None:
        """A step within a quarter and a token within half, from sums a tenth off, some twenty times too large."""
        fit = RobustFit(0.1, 0.0, 0.1)
        for _ in range(400):
            steps, batch, tokens = rng.randint(1, 64), rng.randint(1, 20), rng.choice((0, 100, 800))
            took_s = (0.024 * steps + 0.0016 * steps * batch + 0.0011 * tokens) * rng.uniform(0.9, 1.1)
            fit.add((steps, steps * batch, tokens), took_s * 20 if rng.random() < 0.03 else took_s)
        assert fit.at((1, 10, 0)) == pytest.approx(0.04, rel=0.25)
        assert fit.rates[2] == pytest.approx(0.0011, rel=0.5)

    def test_outliers_hardly_move_it(self, rng: random.Random) -> None:
        """One point in twenty fifty times too large: plain least squares would be three times off."""
        fit = self.line()
        self.feed(fit, rng, 400, 1e-4, outliers=0.05)
        assert fit.at((1.0, 2000.0)) == pytest.approx(0.22, rel=0.5)

    def test_follows_a_drift(self, rng: random.Random) -> None:
        """Three times slower from now on: known within three hundred calls."""
        fit = self.line()
        self.feed(fit, rng, 200, 1e-4)
        self.feed(fit, rng, 300, 3e-4)
        assert fit.at((1.0, 2000.0)) == pytest.approx(0.62, rel=0.15)

    def test_goes_on_for_ever(self, rng: random.Random) -> None:
        """After very many points, none of them gone from the sums, the newest still decide."""
        fit = self.line()
        self.feed(fit, rng, 20_000, 1e-3)
        self.feed(fit, rng, 500, 1e-4)
        assert fit.at((1.0, 2000.0)) == pytest.approx(0.22, rel=0.1)

    def test_points_at_one_place_say_nothing_of_the_slope(self) -> None:
        """The prior's slope stays, and the line goes through them; what was always 0 keeps its prior, too."""
        fit = RobustFit(0.0, 1e-4, 7.0)
        for _ in range(50):
            fit.add((1.0, 100.0, 0.0), 0.5)
        assert fit.rates == pytest.approx((0.49, 1e-4, 7.0))

    def test_no_rate_is_below_zero(self) -> None:
        """Falling points are a constant, points that aim below the origin a line through it."""
        falling, steep = RobustFit(1.0, 0.0), RobustFit(1.0, 0.0)
        for x in (1.0, 2.0, 3.0) * 20:
            falling.add((1.0, x), 10.0 - x)
            steep.add((1.0, x), 10.0 * x - 9.0)  # the first lies on the line that it begins with
        assert falling.rates[0] > 7.0
        assert falling.rates[1] == 0.0
        assert steep.rates[0] == 0.0
        assert steep.rates[1] > 0.0


class TestCost:
    def cost(self, fit_after_calls: int | None = 16) -> CostModel:
        return CostModel(prefill_s_per_token=1e-4, decode_s_per_token=0.025, fit_after_calls=fit_after_calls)

    def teach(self, cost: CostModel, replica_id: str, count: int, slow: float = 1.0) -> None:
        rng = random.Random(count)
        for _ in range(count):
            tokens, batch = rng.randint(10, 3000), rng.randint(5, 15)
            ttft_s, tpot_s = slow * 2e-4 * tokens, slow * (0.02 + 0.001 * batch)
            cost.learn(replica_id, CallTiming(tokens, batch, ttft_s, tpot_s, rng.randint(1, 50)), next(SECONDS))

    def test_begins_with_what_is_configured(self) -> None:
        """And keeps it while little was seen, and where calls tell nothing."""
        cost = self.cost()
        assert cost.prompt_weight == pytest.approx(1e-4 / 0.025)
        assert cost.cost_s(1000, 10) == pytest.approx(0.35)
        for _ in range(100):
            cost.learn("r1", CallTiming(0, 1.0, 0.5, None), next(SECONDS))
            cost.learn("r1", CallTiming(10, 1.0, None, 0.0), next(SECONDS))
        self.teach(cost, "r1", 15)
        assert cost.prompt_weight == pytest.approx(1e-4 / 0.025)

    def test_a_prompt_token_weighs_what_it_costs_the_replica(self) -> None:
        """An output token costs a step's time shared among its batch; the scale of cost stays the configured one."""
        cost = self.cost()
        self.teach(cost, "r1", 300)
        timing = cost.timing("r1")
        assert timing.batch == pytest.approx(10.0, abs=2.0)
        assert timing.prefill_s_per_token == pytest.approx(2e-4, rel=0.05)
        assert timing.tpot_s == pytest.approx(0.03, rel=0.1)
        assert timing.decode_s_per_token == pytest.approx(0.003, rel=0.3)
        assert cost.prompt_weight == pytest.approx(timing.prefill_s_per_token / timing.decode_s_per_token)
        assert cost.cost_s(0, 10) == pytest.approx(0.25)
        assert cost.budget_tokens(100, 10) == pytest.approx(10 + 100 * cost.prompt_weight)

    def test_prompts_computed_meanwhile_make_no_output_token_dear(self, rng: random.Random) -> None:
        """Most of the time between tokens goes by with others' prompts: an output token costs what it costs alone."""
        cost = self.cost()
        for _ in range(300):
            batch, steps = rng.randint(5, 15), rng.randint(4, 60)
            beside_tokens = rng.choice((0, 100, 1000)) * steps // 10
            took_s = steps * (0.02 + 0.001 * batch) + 1e-3 * beside_tokens
            cost.learn("r1", CallTiming(100, batch, 0.1, took_s / steps, steps, beside_tokens), next(SECONDS))
        assert cost.timing("r1").tpot_s == pytest.approx(0.03, rel=0.2)

    def test_a_very_long_answer_counts_as_one_among_others(self) -> None:
        """A thousand times longer, and slow for reasons of its own: the figure stays that of the many."""
        cost = self.cost()
        for _ in range(100):
            cost.learn("r1", CallTiming(100, 1.0, 0.1, 0.02, 200), next(SECONDS))
        cost.learn("r1", CallTiming(100, 1.0, 0.1, 0.2, 200_000), next(SECONDS))
        assert cost.timing("r1").tpot_s == pytest.approx(0.02, rel=0.2)

    def test_the_fit_is_shown_but_does_not_decide_where_told_so(self) -> None:
        """Cost stays as configured, whatever calls took."""
        cost = self.cost(fit_after_calls=None)
        self.teach(cost, "r1", 300)
        assert cost.timing("r1").prefill_s_per_token == pytest.approx(2e-4, rel=0.05)
        assert cost.budget_tokens(1000, 10) == pytest.approx(10 + 1000 * 1e-4 / 0.025)

    def test_replicas_are_told_apart_and_a_new_one_is_like_all(self) -> None:
        """One four times slower than another; of a third next to nothing was seen, or it was forgotten."""
        cost = self.cost()
        self.teach(cost, "r1", 200)
        self.teach(cost, "r2", 200, slow=4.0)
        self.teach(cost, "r3", 3)
        assert cost.prefill_s("r2", 1000) == pytest.approx(4 * cost.prefill_s("r1", 1000), rel=0.1)
        assert cost.timing("r3") is cost.timing("new")
        cost.forget("r2")
        cost.forget("r2")
        assert cost.timing("r2") is cost.timing("new")

    def test_what_is_fitted_stays_within_reason(self) -> None:
        """A clock that is wrong a millionfold makes no cost of it."""
        cost = self.cost()
        self.teach(cost, "r1", 100, slow=1e6)
        assert cost.timing("r1").prefill_s_per_token == pytest.approx(0.1)
        assert cost.timing("r1").tpot_s == pytest.approx(25.0)

    def test_of_very_many_calls_a_few_are_enough(self) -> None:
        """After the first hundred one in a twentieth of a second teaches; a replica that has become slower is seen."""
        cost = CostModel(prefill_s_per_token=1e-4, decode_s_per_token=0.02, fit_after_calls=64)
        for number in range(4000):
            cost.learn("r1", CallTiming(100, 1.0, 0.1, 0.02), number / 1000)
        assert 128 <= cost.timing("r1").num_calls <= 128 + 4 / 0.05
        for number in range(20_000):
            cost.learn("r1", CallTiming(100, 1.0, 0.1, 0.04), 4 + number / 1000)
        assert cost.timing("r1").tpot_s == pytest.approx(0.04, rel=0.1)
