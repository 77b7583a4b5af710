"""Loaders of public LLM request traces and of benchmarks' results: lengths, arrivals, tenants and prefix blocks, never
prompt text.
"""

from .load import attribution, load_trace
from .trace import Trace

__all__ = ["Trace", "attribution", "load_trace"]
