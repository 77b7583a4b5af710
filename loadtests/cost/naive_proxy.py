"""The proxy that most people write first, FastAPI and httpx: the measure of what a gateway may cost at most.

`uvicorn loadtests.cost.naive_proxy:app`, with the replica's URL in the environment variable REPLICA_URL.
"""

import os
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

app = FastAPI()
# None of httpx's own bounds: it would turn callers away.
_client = httpx.AsyncClient(
    base_url=os.environ.get("REPLICA_URL", "http://127.0.0.1:8000"),
    timeout=None,
    limits=httpx.Limits(max_connections=None, max_keepalive_connections=512),
)


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    """Parsed, sent on, and the answer passed back; a stream as it comes."""
    body = await request.json()
    sent = _client.build_request("POST", "/v1/chat/completions", json=body)
    if not body.get("stream"):
        answer = await _client.send(sent)
        return JSONResponse(answer.json(), status_code=answer.status_code)
    answer = await _client.send(sent, stream=True)

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_bytes():
                yield piece
        finally:
            await answer.aclose()

    return StreamingResponse(pieces(), status_code=answer.status_code, media_type="text/event-stream")
