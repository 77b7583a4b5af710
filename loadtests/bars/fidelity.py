"""How near the simulator comes to measured runs of vLLM: fitted to the first 150 requests, judged by the rest."""

from collections.abc import Callable
from pathlib import Path

from ..compare import OnStep
from ..sim.fidelity import fidelity
from ..sim.fit import fit_model
from ..sim.measured import load_measured
from ..sim.model import ReplicaModel
from ..sim.step_time import StepTime
from .bar import Bar, at_most, skipped

FILE = "vllm_measured_sharegpt.csv.gz"
NUM_FITTED = 150
MAX_NUM_SEQS = {
    "rtx4090_llama3.1-8b_tp1": 256,
    "rtxpro6000_llama3.1-8b_tp1": 128,
    "rtxpro6000_qwen3-30b-a3b_tp1": 256,
    "rtxpro6000_qwen3-32b_tp2": 128,
}
"""The engine's flag in each run: known beforehand, as its step of 2,048 tokens is."""
TTFT_LIMIT_RATIO = 0.09
TPOT_LIMIT_RATIO = 0.05


def fidelity_bars(traces: Path | None, on_step: OnStep, report: Callable[[Bar], None]) -> None:
    """The largest deviation of any percentile (50, 90, 95, 99): first-token times and times per token of each run."""
    measured = None if traces is None or not (traces / FILE).exists() else load_measured(traces / FILE)
    for run, max_num_seqs in MAX_NUM_SEQS.items():
        names = [f"simulator-{kind}-{run.replace('_', '-').replace('.', '-')}" for kind in ("ttft", "tpot")]
        if measured is None or run not in measured:
            for name in names:
                report(skipped(name, f"no {FILE}; name its folder with --traces"))
            continue
        limits = ReplicaModel(StepTime(1.0, 1.0), num_blocks=1, max_num_seqs=max_num_seqs)
        advance = on_step(f"fitting {run}, simulations", None)
        fit = fit_model(measured[run], limits, num_fitted=NUM_FITTED, on_simulation=advance)
        found = fidelity(measured[run], fit.model, first=NUM_FITTED)
        memory = f"{fit.model.capacity_tokens} tokens" if fit.is_memory_bound else "never short"
        report(at_most(names[0], found.worst_ttft_ratio, TTFT_LIMIT_RATIO, f"{_shown(found.ttft)}; memory: {memory}"))
        report(at_most(names[1], found.worst_tpot_ratio, TPOT_LIMIT_RATIO, _shown(found.tpot)))


def _shown(deviations: object) -> str:
    assert isinstance(deviations, dict)
    return ", ".join(f"P{level} {ratio:+.2%}" for level, ratio in deviations.items())
