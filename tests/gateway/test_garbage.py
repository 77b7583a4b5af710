"""The collector, set for a server: in a process of its own, since it is the whole process that is set."""

import subprocess
import sys

SCRIPT = """
import gc
from gateway import garbage
assert gc.get_threshold()[0] == 700
garbage.settle()
assert gc.isenabled()
assert gc.get_freeze_count() > 1000
before = gc.get_stats()[0]["collections"]
alive = [[] for _ in range(5000)]  # as many as hundreds of requests make
assert gc.get_stats()[0]["collections"] == before
class Node:
    gone = 0
    def __init__(self):
        self.me = self
    def __del__(self):
        Node.gone += 1
for _ in range(100_000):
    Node()
assert Node.gone > 50_000  # cycles are still found, before they are many
"""


def test_settled_for_serving() -> None:
    """What is alive is left alone, what is new is looked at rarely, and cycles are still freed."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
