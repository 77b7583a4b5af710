"""The access log: whole lines, in order, never in a request's way."""

import io
import json
import sys
from pathlib import Path

import pytest

from gateway import access_log
from gateway.access_log import AccessLog
from gateway.attribution import Layer, Record
from gateway.config_errors import ConfigError


def record(number: int) -> Record:
    made = Record(f"tg-{number}", 1.0, route="chat", model="m")
    made.enter(Layer.QUEUE, 2.0)
    made.finish(3.0)
    return made


def test_a_line_per_request_in_order(tmp_path: Path) -> None:
    """JSON with the time of day, appended to what was there."""
    file = tmp_path / "access.jsonl"
    file.write_text("{}\n")
    log = AccessLog(str(file), wall_clock=lambda: 0.0)
    log.start()
    for number in range(1000):
        log.write(record(number))
    log.close()
    log.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["request_id"] for line in lines[1:]] == [f"tg-{number}" for number in range(1000)]
    assert lines[1]["time"] == "1970-01-01T00:00:00.000+00:00"
    assert lines[1]["total_ms"] == 2000.0
    assert log.num_dropped == 0


def test_no_target_writes_nothing() -> None:
    """And costs nothing."""
    log = AccessLog(None)
    log.start()
    log.write(record(1))
    log.close()


def test_stderr_is_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays open afterwards."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log = AccessLog("stderr")
    log.start()
    log.write(record(7))
    log.close()
    assert json.loads(stream.getvalue())["request_id"] == "tg-7"


class Stuck(io.StringIO):
    """A pipe that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        import threading

        self.gate = threading.Event()
        self.entered = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.gate.wait(10)
        return super().write(text)


def test_a_stuck_target_costs_lines_not_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What doesn't fit is counted; what was taken is written once the target moves."""
    stream = Stuck()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(access_log, "MAX_WAITING", 10)
    log = AccessLog("stderr")
    log.start()
    log.write(record(0))
    assert stream.entered.wait(10)
    for number in range(1, 31):
        log.write(record(number))
    assert log.num_dropped == 20
    stream.gate.set()
    log.close()
    assert len(stream.getvalue().splitlines()) == 11


def test_a_target_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway serves on."""
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    log = AccessLog("stderr")
    log.start()
    log.write(record(0))
    log.close()
    assert log.num_dropped == 1


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    """Named as the configuration names it, with the system's reason."""
    with pytest.raises(ConfigError, match=r"log\.access: .* can't be written: No such file or directory"):
        AccessLog(str(tmp_path / "no" / "such" / "file")).start()
