"""Running an engine by hand and keeping what it says."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.engine import Engine
from backend.outputs import ErrorOutput, Output, TokenOutput


@dataclass
class Collected:
    """Outputs by request and choice."""

    outputs: dict[tuple[str, int], list[TokenOutput]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def take(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, ErrorOutput):
                self.errors[output.request_id] = output.message
            else:
                self.outputs.setdefault((output.request_id, output.choice), []).append(output)

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        return [output.token.token_id for output in self.outputs.get((request_id, choice), [])]

    def text(self, request_id: str, choice: int = 0) -> str:
        return "".join(output.text for output in self.outputs[request_id, choice])

    def last(self, request_id: str, choice: int = 0) -> TokenOutput:
        return self.outputs[request_id, choice][-1]


def collect(engine: Engine) -> Collected:
    """Subscribe."""
    collected = Collected()
    engine.subscribe(collected.take)
    return collected


def run_all(engine: Engine, *, max_steps: int = 20_000) -> None:
    """Step until nothing is left, with an integrity check after every step."""
    for _ in range(max_steps):
        if not engine.run_pending():
            return
        engine.check_integrity()
    raise AssertionError(f"not done after {max_steps} steps")
