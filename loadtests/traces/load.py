"""A trace from a file: its format is recognised by its columns or keys.

- `azure` (2023, 2024): `TIMESTAMP,ContextTokens,GeneratedTokens`; Azure/AzurePublicDataset, CC-BY 4.0.
- `mooncake`: JSON lines `timestamp` (ms), `input_length`, `output_length`, `hash_ids`; kvcache-ai/Mooncake, Apache-2.0.
- `burstgpt`: `Timestamp,[Session ID],Request tokens,Response tokens`; HPMLL/BurstGPT, CC-BY 4.0.
- `servegen`: `timestamp,client_id,input_tokens,output_tokens`, drawn from alibaba/ServeGen's statistics, Apache-2.0.
- `vtc`: `req_time,adapter_dir,prompt_len,output_len`; Ying1123/VTC-artifact, Apache-2.0.
- `arxiv`: `num_prefill_tokens,num_decode_tokens`, without arrivals; microsoft/vidur, MIT.
- `qwen-bailian`: JSON lines `chat_id`, `timestamp` (s), `input_length`, `output_length`, `type`, `hash_ids` of 16
  tokens; alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0.
- `measured`: `run,input_toks,output_toks,queued_s`; requests measured on vLLM, casys-kaist/LLMServingSim, MIT.
- `vllm`: the JSON that vLLM's serving benchmark saves with `--save-detailed`.
- `aiperf`: AIPerf's `profile_export.jsonl`.
"""

from pathlib import Path

from ..errors import TraceError
from .cells import open_text
from .lines import LINES, VLLM, load_json
from .tables import TABLES, load_table
from .trace import Trace


def attribution(format_name: str) -> tuple[str, str]:
    """Origin and licence of a format. Raises KeyError for an unknown one."""
    known = {form.name: (form.origin, form.licence) for form in (*TABLES, *LINES)}
    return (known | {VLLM[0]: VLLM[1:]})[format_name]


def load_trace(path: str | Path) -> Trace:
    """Reads a trace, plain or gzip, of any known format.

    Raises `TraceError` naming file, line (from 1) and column for an unknown format, a value of the wrong type, a
    negative length, or an empty file.
    """
    path = Path(path)
    with open_text(path) as lines:
        first = next(lines, "")
        if not first.strip():
            raise TraceError(str(path), 1, None, "the file is empty")
        if first.lstrip().startswith("{"):
            return load_json(path, first, lines)
        return load_table(path, first, lines)
