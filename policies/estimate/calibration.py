"""How right predictions of output length turn out to be."""


class Calibration:
    """Counts of requests that were answered and had been predicted."""

    def __init__(self) -> None:
        self.num_predicted = 0
        self.num_covered = 0
        """No longer than predicted: the quantile that predicts, if it is right."""
        self.num_short = 0
        """Whose real budget is an interactive one."""
        self.num_short_predicted_long = 0
        """Of those, the ones predicted above the standard lane's cut: they wait as the long do."""

    def add(
        self, predicted_tokens: int, output_tokens: int, budgets: tuple[float, float], cuts: tuple[float, float]
    ) -> None:
        """`budgets`: predicted and real, in weighted tokens. `cuts`: the largest interactive and standard ones."""
        self.num_predicted += 1
        self.num_covered += output_tokens <= predicted_tokens
        if budgets[1] <= cuts[0]:
            self.num_short += 1
            self.num_short_predicted_long += budgets[0] > cuts[1]
