"""From `tailgate up` to the first chat completion, in an environment that is installed already."""

import tempfile
import time
from pathlib import Path

from ..client import LoadClient
from ..processes import free_port, running, script, wait_until_ready
from .bar import Bar, at_least, at_most

_LIMIT_S = 360.0


async def start_bars() -> list[Bar]:
    """Seconds to the first answer, and whether it knows the capital of France."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    question = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "up.log"
        began_s = time.monotonic()
        async with running([script("tailgate"), "up", "--port", str(port)], log_path) as process:
            await wait_until_ready(f"{url}/readyz", process, log_path, _LIMIT_S)
            async with LoadClient(url, "") as client:
                client.model = await client.first_model()
                status, answer = await client.post_json("/v1/chat/completions", {"model": client.model, **question})
            elapsed_s = time.monotonic() - began_s
    text = answer["choices"][0]["message"]["content"] if status == 200 else ""
    return [
        at_most("start-to-first-chat-s", elapsed_s, _LIMIT_S, "environment installed already"),
        at_least("start-answer-says-paris", float("Paris" in text), 1.0, repr(text)),
    ]
