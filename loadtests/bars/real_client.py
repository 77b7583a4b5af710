"""The `openai` package, unchanged, against the gateway."""

from collections.abc import Awaitable, Callable

from .bar import Bar, at_least

Check = Callable[[], Awaitable[bool]]


async def real_client_bar(url: str, model: str) -> Bar:
    """Share of checks that hold: chat, stream, completions, models, errors, cancel."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:

        async def chat() -> bool:
            answer = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=24,
                temperature=0,
            )  # fmt: skip
            usage = answer.usage
            return "Paris" in (answer.choices[0].message.content or "") and usage is not None and usage.total_tokens > 0

        async def stream() -> bool:
            text, has_usage = "", False
            async for chunk in await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=24,
                temperature=0, stream=True, stream_options={"include_usage": True},
            ):  # fmt: skip
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                has_usage = has_usage or chunk.usage is not None
            return "Paris" in text and has_usage

        async def completions() -> bool:
            answer = await client.completions.create(
                model=model, prompt="The capital of France is", max_tokens=8, temperature=0
            )
            return "Paris" in answer.choices[0].text

        async def models() -> bool:
            return model in [entry.id async for entry in client.models.list()]

        async def unknown_model() -> bool:
            try:
                await client.chat.completions.create(model="no-such", messages=[{"role": "user", "content": "hello"}])
            except openai.NotFoundError as error:
                return bool(error.body)
            return False

        async def bad_request() -> bool:
            try:
                await client.chat.completions.create(model=model, messages=[])
            except openai.BadRequestError as error:
                return bool(error.body)
            return False

        async def cancel() -> bool:
            answer = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Count to a thousand."}], max_tokens=400, stream=True
            )
            async for _ in answer:
                break
            await answer.close()
            return await chat()

        checks: list[Check] = [chat, stream, completions, models, unknown_model, bad_request, cancel]
        failures = [check.__name__ for check in checks if not await _holds(check, openai.OpenAIError)]
    held = (len(checks) - len(failures)) / len(checks)
    return at_least("openai-client-checks-ratio", held, 1.0, f"failed: {', '.join(failures)}" if failures else "")


async def _holds(check: Check, expected: type[Exception]) -> bool:
    try:
        return await check()
    except expected:
        return False
