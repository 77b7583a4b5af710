"""The bodies of the routes. Types are strict: a number in quotes is an error, as it is at OpenAI."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

TokenIds = list[Annotated[int, Field(ge=0)]]
# Signed 32 bits, as in vLLM.
_INT32 = 1 << 31
MAX_STOP_TOKEN_IDS = 1024


class _Body(BaseModel):
    """Unknown fields are ignored, as vLLM does; known unsupported ones are refused before (see `refusals`)."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class StreamOptions(_Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(_Body):
    """A chat message. Content parts are joined; what isn't text is refused."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None


class GenerationBody(_Body):
    """What chat and text completions share. None means what it means when absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1, lt=_INT32)
    min_tokens: int | None = Field(None, ge=0, lt=_INT32)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=_INT32)
    """Off at 0, at -1, and from the size of the vocabulary on."""
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, gt=-(1 << 63), lt=1 << 63)
    stop: str | list[str] | None = None
    stop_token_ids: TokenIds | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = Field(None, ge=-_INT32, lt=_INT32)
    """vLLM's sign: lower goes first."""
    cache_salt: str | None = Field(None, min_length=1, max_length=256)


class ChatBody(GenerationBody):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=_INT32)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    add_generation_prompt: bool | None = None


class CompletionBody(GenerationBody):
    prompt: str | list[Any]
    """A text, texts, token ids or lists of them; the items are checked where they are read."""
    logprobs: int | None = Field(None, ge=0, le=20)
    add_special_tokens: bool | None = None


class TokenizeBody(_Body):
    """A prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(_Body):
    model: str | None = None
    tokens: TokenIds
