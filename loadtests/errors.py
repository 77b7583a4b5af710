"""What can go wrong with what the caller gave us. Every message names the place (file, line, column or key)."""


class LoadtestError(Exception):
    """Base of the errors that a command reports in one line and exits with status 2."""


class TraceError(LoadtestError):
    """A trace file that cannot be read as its format."""

    def __init__(self, path: str, line: int | None, column: str | None, message: str) -> None:
        place = path
        if line is not None:
            place += f", line {line}"
        if column is not None:
            place += f", column {column}"
        super().__init__(f"{place}: {message}")
        self.path = path
        self.line = line
        self.column = column


class ScenarioError(LoadtestError):
    """A scenario that cannot be read; names file and key."""

    def __init__(self, path: str, key: str, message: str) -> None:
        super().__init__(f"{path}: {key}: {message}")
        self.path = path
        self.key = key


class TargetError(LoadtestError):
    """The server under test did not do what a run needs (no model, no start, no answer)."""
