"""From logits to tokens, for all rows of a step at once.

Order as in vLLM: temperature, min_p, top_k, top_p, each on what the one before left. A token is then drawn by inverting
the cumulative distribution at one uniform number a row, so that a seeded request's draws depend on its own generator
alone and not on who shares the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

# Nucleus sampling looks at this many of the likeliest tokens first, and at so many times more while these don't reach
# top_p: sorting a whole vocabulary takes twenty times longer.
_FIRST_CANDIDATES = 256
_WIDENING = 16
# A whole vocabulary is searched in runs of this many columns: near the square root of the usual 32k to 256k.
_RUN_COLUMNS = 256
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence is sampled. Raises ValueError for values outside their range.

    temperature 0 is greedy. top_p in (0, 1], top_k 0 is off, min_p in [0, 1] is relative to the likeliest token.
    num_logprobs None: none; n: of the chosen token and the n likeliest, of the model's own distribution, before
    temperature and cuts.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    num_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, holds, allowed in (
            ("temperature", 0.0 <= self.temperature < float("inf"), "0 or a positive number"),
            ("top_p", 0.0 < self.top_p <= 1.0, "over 0 and up to 1"),
            ("top_k", self.top_k >= 0, "0 (off) or a positive number"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "0 to 1"),
            ("seed", self.seed is None or -_MAX_SEED <= self.seed <= _MAX_SEED, "a signed 64-bit number"),
            ("num_logprobs", self.num_logprobs is None or self.num_logprobs >= 0, "0 or a positive number"),
        ):
            if not holds:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: {allowed}")

    def generator(self) -> torch.Generator | None:
        """The sequence's own source of chance, to be kept over its steps; None without a seed."""
        return None if self.seed is None else torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, and natural-log probabilities where they were asked for: its own and the likeliest ones', best first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Stateless: everything that lasts over steps is in the generators."""

    def sample(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        generators: Sequence[torch.Generator | None],
    ) -> list[SampledToken]:
        """One token for each row of float32 logits [n, vocab]. params and generators are the rows', in order."""
        if not len(logits) == len(params) == len(generators):
            raise ValueError(f"{len(logits)} rows of logits, {len(params)} params and {len(generators)} generators")
        if not params:
            return []
        with torch.inference_mode():
            chosen = logits.argmax(-1)
            drawn = [i for i, p in enumerate(params) if p.temperature > 0]
            if drawn:
                rows = logits if len(drawn) == len(params) else logits[drawn]
                chosen[drawn] = _draw(rows, [params[i] for i in drawn], [generators[i] for i in drawn])
            token_ids = chosen.tolist()
            sampled = [SampledToken(token_id) for token_id in token_ids]
            with_logprobs = [i for i, p in enumerate(params) if p.num_logprobs is not None]
            if with_logprobs:
                counts = [params[i].num_logprobs or 0 for i in with_logprobs]
                details = _logprobs(logits[with_logprobs], [token_ids[i] for i in with_logprobs], counts)
                for i, detail in zip(with_logprobs, details, strict=True):
                    sampled[i] = detail
        return sampled


def _draw(
    logits: torch.Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator | None]
) -> torch.Tensor:
    """Token ids [n] drawn at the rows' temperatures and cuts."""
    uniform = torch.rand(len(params), dtype=torch.float64)
    for i, generator in enumerate(generators):
        if generator is not None:
            uniform[i] = torch.rand((), dtype=torch.float64, generator=generator)
    # Weights relative to the likeliest token's, which is 1: nothing can overflow, and a total is never needed first.
    # Temperatures too small for float32 are as good as 0, and so is the smallest one that isn't.
    smallest = torch.finfo(torch.float32).tiny
    temperatures = torch.tensor([[max(p.temperature, smallest)] for p in params])
    weights = (logits - logits.amax(-1, keepdim=True)).div_(temperatures).exp_()
    if any(p.min_p > 0 for p in params):
        weights.masked_fill_(weights < torch.tensor([[p.min_p] for p in params]), 0.0)
    cut = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1.0]
    whole = [i for i, p in enumerate(params) if p.top_k == 0 and p.top_p == 1.0]
    token_ids = torch.empty(len(params), dtype=torch.int64)
    if whole:
        token_ids[whole] = _invert_by_runs(weights if not cut else weights[whole], uniform[whole])
    if cut:
        candidates, ids = _cut(weights[cut], [params[i] for i in cut])
        token_ids[cut] = ids.gather(1, _invert(candidates, uniform[cut]).unsqueeze(1)).squeeze(1)
    return token_ids


def _cut(weights: torch.Tensor, params: Sequence[SamplingParams]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [n, k] of the candidates that top_k and top_p leave, likeliest first, others 0; and their token ids."""
    vocab_size = weights.shape[1]
    top_k = torch.tensor([[min(p.top_k or vocab_size, vocab_size)] for p in params])
    top_p = torch.tensor([[p.top_p] for p in params], dtype=torch.float64)
    num_candidates = min(vocab_size, max([_FIRST_CANDIDATES, *(p.top_k for p in params)]))
    while True:
        sorted_weights, ids = weights.topk(num_candidates)
        sorted_weights = sorted_weights.masked_fill(torch.arange(num_candidates) >= top_k, 0.0)
        cumulative = sorted_weights.cumsum(-1, dtype=torch.float64)
        # What a row's top_p is a share of: what min_p and top_k left.
        total = torch.where(top_k >= vocab_size, weights.sum(-1, dtype=torch.float64).unsqueeze(1), cumulative[:, -1:])
        if num_candidates == vocab_size or bool((cumulative[:, -1:] >= top_p * total).all()):
            break
        num_candidates = min(vocab_size, num_candidates * _WIDENING)
    # A token stays while those before it don't reach top_p: the likeliest always does.
    before = cumulative - sorted_weights
    return sorted_weights.masked_fill((before >= top_p * total) & (top_p < 1.0), 0.0), ids


def _invert_by_runs(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """As `_invert`, for whole vocabularies: first the run of columns, then the column. A sum over all is much cheaper
    than a running sum over all."""
    num_rows, vocab_size = weights.shape
    runs = functional.pad(weights, (0, -vocab_size % _RUN_COLUMNS)).view(num_rows, -1, _RUN_COLUMNS)
    up_to = runs.sum(-1, dtype=torch.float64).cumsum(-1)
    run, rest = _search(up_to, uniform * up_to[:, -1])
    inside, _ = _search(runs[torch.arange(num_rows), run].cumsum(-1, dtype=torch.float64), rest)
    return run * _RUN_COLUMNS + inside


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Columns [n] drawn in proportion to weights [n, k], at uniform numbers in [0, 1)."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return _search(cumulative, uniform * cumulative[:, -1])[0]


def _search(cumulative: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns [n] in which targets [n] fall, and how far into them."""
    total = cumulative[:, -1]
    # Rounding must not reach the total itself, past the last column that has any weight.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total))).unsqueeze(1)
    columns = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)
    before = functional.pad(cumulative, (1, 0)).gather(1, columns)
    return columns.squeeze(1), (target - before).squeeze(1)


def _logprobs(logits: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[SampledToken]:
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(token_ids).unsqueeze(1)).squeeze(1).tolist()
    values, ids = logprobs.topk(min(max(counts), logprobs.shape[1]))
    return [
        SampledToken(token_id, logprob, tuple(zip(top_ids[:count], top_values[:count], strict=True)))
        for token_id, logprob, count, top_ids, top_values in zip(
            token_ids, own, counts, ids.tolist(), values.tolist(), strict=True
        )
    ]
