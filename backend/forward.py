"""The rows of a step through the model: together, and one by one where that fails."""

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from .runner import RunnerRow
from .scheduler import StepRow

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """One forward pass."""

    def forward(self, rows: Sequence[RunnerRow]) -> torch.Tensor:
        """Write keys and values of all rows, return float32 logits [rows that need them, vocab], in order."""
        ...


class Computed(NamedTuple):
    """What became of a step's rows. `logits`: of the computed rows that reach their end, [rows, vocab], in order."""

    rows: Sequence[StepRow]
    failed: Sequence[StepRow]
    logits: torch.Tensor


class Forward:
    """The runner, as steps use it. Computing a row again writes the same keys and values to the same places."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(self, rows: Sequence[StepRow]) -> Computed:
        """A row that fails is no other's concern."""
        if not rows:
            return Computed((), (), torch.empty(0))
        try:
            return Computed(rows, (), self._runner.forward([_runner_row(row) for row in rows]))
        except Exception:
            logger.exception("a step of %s failed", ", ".join(row.sequence.request.request_id for row in rows))
        if len(rows) == 1:
            return Computed((), rows, torch.empty(0))
        alone = [self.run([row]) for row in rows]
        logits = [one.logits for one in alone if one.rows]
        return Computed(
            [row for one in alone for row in one.rows],
            [row for one in alone for row in one.failed],
            torch.cat(logits) if logits else torch.empty(0),
        )


def _runner_row(row: StepRow) -> RunnerRow:
    return RunnerRow(
        token_ids=row.token_ids,
        start_position=row.sequence.computed_tokens,
        block_table=row.sequence.block_table,
        needs_logits=row.reaches_end,
    )
