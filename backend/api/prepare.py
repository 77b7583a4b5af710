"""A checked body → generation requests: template, tokens, limits."""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from ..chat_template import ChatTemplateError
from ..sampler import SamplingParams
from ..sequence import GenerationRequest
from . import refusals
from .errors import ApiError, bad_request, from_validation
from .fields import ChatBody, CompletionBody, GenerationBody, Message, StreamOptions

_MAX_CHOICES = 1024
# Each is looked for in the text of every token.
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 4096
_TOO_LONG = "context_length_exceeded"
_MAX_PRIORITY = (1 << 31) - 1
# OpenAI's and vLLM's default of text completions. Chat has none: the rest of the context.
_DEFAULT_COMPLETION_TOKENS = 16

B = TypeVar("B", bound=BaseModel)


class Tokenizer(Protocol):
    """What the API needs of the model's tokenizer. Called on a thread pool."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]: ...
    def fewest_tokens(self, text: str) -> int: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def bytes_of(self, token_id: int, *, skip_special_tokens: bool = True) -> bytes: ...
    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """An answer's requests, one a prompt, and how it is to be given."""

    requests: tuple[GenerationRequest, ...]
    model: str
    streams: bool
    stream_options: StreamOptions
    num_logprobs: int | None

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_choices(self) -> int:
        return sum(request.num_choices for request in self.requests)


class Preparer:
    """Turns bodies into requests. Tokenising runs on `pool`, so that a long prompt doesn't stop the event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        pool: Executor,
        *,
        model_names: Sequence[str],
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_model_len = max_model_len
        self.model_names = tuple(model_names)
        self._tokenizer = tokenizer
        self._pool = pool
        self._clock = clock

    async def chat(self, fields: Mapping[str, Any], header_priority: str | None) -> Prepared:
        """A chat completion. Raises `ApiError`."""
        arrival_s = self._clock()
        refusals.refuse_unsupported(fields, refusals.CHAT)
        body = validate(ChatBody, fields)
        if body.top_logprobs and not body.logprobs:
            raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
        token_ids = await self.chat_tokens(body.messages, add_generation_prompt=body.add_generation_prompt)
        max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        return self._prepare(
            body,
            [token_ids],
            arrival_s=arrival_s,
            prompt_param="messages",
            max_tokens=max_tokens,
            max_tokens_param=param,
            num_logprobs=num_logprobs,
            header_priority=header_priority,
        )

    async def completions(self, fields: Mapping[str, Any], header_priority: str | None) -> Prepared:
        """A text completion. Raises `ApiError`."""
        arrival_s = self._clock()
        refusals.refuse_unsupported(fields, refusals.COMPLETIONS)
        body = validate(CompletionBody, fields)
        self._check_sizes(body)
        prompts = _read_prompts(body.prompt, self._tokenizer.vocab_size)
        max_tokens = _DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        add_special_tokens = body.add_special_tokens is not False
        token_ids: list[Sequence[int]] = []
        for prompt in prompts:
            if isinstance(prompt, str):
                prompt = await self.text_tokens(prompt, add_special_tokens=add_special_tokens)
            # Before the next one is tokenised.
            self._check_context(len(prompt), max_tokens, "prompt", "max_tokens")
            token_ids.append(prompt)
        return self._prepare(
            body,
            token_ids,
            arrival_s=arrival_s,
            prompt_param="prompt",
            max_tokens=max_tokens,
            max_tokens_param="max_tokens",
            num_logprobs=body.logprobs,
            header_priority=header_priority,
        )

    def _check_sizes(self, body: CompletionBody) -> None:
        """Raises a 400 before millions of items are looked at one by one."""
        prompt = body.prompt
        if not isinstance(prompt, list) or not prompt:
            return
        if isinstance(prompt[0], int):  # token ids are one prompt
            prompt = [prompt]
        _check_choices(len(prompt), body.n)
        for item in prompt:
            if isinstance(item, list) and len(item) > self.max_model_len:
                raise self._too_long(str(len(item)), "prompt")

    async def chat_tokens(self, messages: Sequence[Message], *, add_generation_prompt: bool | None) -> list[int]:
        """Messages through the chat template."""
        plain = [_plain_message(message, position) for position, message in enumerate(messages)]

        def render_and_encode() -> list[int]:
            try:
                text = self._tokenizer.apply_chat_template(
                    plain, add_generation_prompt=add_generation_prompt is not False
                )
            except ChatTemplateError as error:
                raise bad_request(f"the model's chat template refuses these messages: {error}", "messages") from error
            return self._encode(text, "messages", add_special_tokens=False)

        return await asyncio.get_running_loop().run_in_executor(self._pool, render_and_encode)

    async def text_tokens(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Plain text."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, lambda: self._encode(text, "prompt", add_special_tokens=add_special_tokens)
        )

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Raises a 400 for what can't fit: tokenising megabytes takes seconds, and gigabytes."""
        fewest_tokens = self._tokenizer.fewest_tokens(text)
        if fewest_tokens > self.max_model_len:
            raise self._too_long(f"at least {fewest_tokens}", param)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def check_model(self, name: str | None) -> str:
        """The model's name. None is the model that is served. Raises a 404."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            known = ", ".join(self.model_names)
            raise ApiError(
                404, f"model {name!r} does not exist; served: {known}", param="model", code="model_not_found"
            )
        return name

    def _prepare(
        self,
        body: GenerationBody,
        prompts: Sequence[Sequence[int]],
        *,
        arrival_s: float,
        prompt_param: str,
        max_tokens: int | None,
        max_tokens_param: str,
        num_logprobs: int | None,
        header_priority: str | None,
    ) -> Prepared:
        model = self.check_model(body.model)
        if body.stream_options is not None and not body.stream:
            raise bad_request("stream_options needs stream: true", "stream_options")
        num_choices = _check_choices(len(prompts), body.n)
        sampling = SamplingParams(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(0, body.top_k or 0),
            min_p=0.0 if body.min_p is None else body.min_p,
            seed=body.seed,
            num_logprobs=num_logprobs,
        )
        priority = _priority(body.priority, header_priority)
        requests = []
        for position, token_ids in enumerate(prompts):
            room = self._check_context(len(token_ids), max_tokens, prompt_param, max_tokens_param)
            allowed = room if max_tokens is None else max_tokens
            if body.min_tokens is not None and body.min_tokens > allowed:
                raise bad_request(f"min_tokens {body.min_tokens} is over max_tokens {allowed}", "min_tokens")
            requests.append(
                GenerationRequest(
                    request_id=uuid.uuid4().hex,
                    prompt_token_ids=token_ids,
                    max_tokens=allowed,
                    arrival_s=arrival_s,
                    sampling=sampling,
                    num_choices=num_choices,
                    first_choice=position * num_choices,
                    stop=_stop_strings(body.stop),
                    stop_token_ids=frozenset(check_ids(body.stop_token_ids or [], self._tokenizer.vocab_size)),
                    ignore_eos=bool(body.ignore_eos),
                    min_tokens=body.min_tokens or 0,
                    skip_special_tokens=body.skip_special_tokens is not False,
                    priority=priority,
                    cache_salt=body.cache_salt,
                )
            )
        return Prepared(
            requests=tuple(requests),
            model=model,
            streams=bool(body.stream),
            stream_options=body.stream_options or StreamOptions(),
            num_logprobs=num_logprobs,
        )

    def _check_context(
        self, num_prompt_tokens: int, max_tokens: int | None, prompt_param: str, max_tokens_param: str
    ) -> int:
        """Room for output tokens after a prompt. Raises a 400 when prompt and output don't fit."""
        if num_prompt_tokens == 0:
            raise bad_request("the prompt has no tokens", prompt_param)
        room = self.max_model_len - num_prompt_tokens
        if room < 1:
            raise self._too_long(str(num_prompt_tokens), prompt_param)
        if max_tokens is not None and max_tokens > room:
            raise bad_request(
                f"the prompt has {num_prompt_tokens} tokens and {max_tokens_param} is {max_tokens}, "
                f"{num_prompt_tokens + max_tokens} together; this model's context is {self.max_model_len} tokens",
                max_tokens_param,
                _TOO_LONG,
            )
        return room

    def _too_long(self, num_tokens: str, param: str) -> ApiError:
        return bad_request(
            f"the prompt has {num_tokens} tokens; this model's context is {self.max_model_len} tokens, "
            "and the answer needs at least one of them",
            param,
            _TOO_LONG,
        )


def validate(model: type[B], fields: Mapping[str, Any]) -> B:
    """Check a body's types. Raises a 400 that names the field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error) from None


def _check_choices(num_prompts: int, n: int | None) -> int:
    """Choices of each prompt. Raises a 400 when that makes too many."""
    num_choices = 1 if n is None else n
    if num_prompts * num_choices > _MAX_CHOICES:
        raise bad_request(f"{num_prompts} prompts with n={num_choices}: at most {_MAX_CHOICES} choices", "n")
    return num_choices


def _priority(wire: int | None, header: str | None) -> int:
    """Ours (higher first) from vLLM's (lower first); the header `X-Vllm-Priority` wins over the body."""
    if header is not None:
        try:
            wire = int(header)
        except ValueError:
            raise bad_request("the header X-Vllm-Priority must be an integer", "priority") from None
        if abs(wire) > _MAX_PRIORITY:
            raise bad_request(f"the header X-Vllm-Priority must be at most {_MAX_PRIORITY}, up or down", "priority")
    return -(wire or 0)


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in strings:
        raise bad_request("stop: a stop string must not be empty", "stop")
    if len(strings) > MAX_STOP_STRINGS or sum(map(len, strings)) > MAX_STOP_CHARACTERS:
        raise bad_request(
            f"stop: at most {MAX_STOP_STRINGS} strings of {MAX_STOP_CHARACTERS} characters together", "stop"
        )
    return strings


def check_ids(token_ids: Sequence[int], vocab_size: int, param: str = "stop_token_ids") -> Sequence[int]:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise bad_request(f"{param}: token id {token_id} is outside the vocabulary of {vocab_size}", param)
    return token_ids


def _read_prompts(prompt: str | list[Any], vocab_size: int) -> list[str | Sequence[int]]:
    """OpenAI's four shapes: a text, texts, token ids, lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_request("prompt: must not be empty", "prompt")
    if all(type(item) is int for item in prompt):
        return [check_ids(prompt, vocab_size, "prompt")]
    prompts: list[str | Sequence[int]] = []
    for item in prompt:
        if isinstance(item, list) and all(type(token_id) is int for token_id in item):
            prompts.append(check_ids(item, vocab_size, "prompt"))
        elif isinstance(item, str):
            prompts.append(item)
        else:
            raise bad_request("prompt: must be a text, a list of texts, token ids, or lists of token ids", "prompt")
    if len({type(item) for item in prompts}) > 1:
        raise bad_request("prompt: texts and token ids can't be mixed", "prompt")
    return prompts


def _plain_message(message: Message, position: int) -> dict[str, Any]:
    """A message with its text parts joined."""
    content = message.content
    if isinstance(content, list):
        texts = []
        for index, part in enumerate(content):
            param = f"messages.{position}.content.{index}"
            if part.get("type") != "text":
                raise bad_request(f"{param}: only parts of type text are supported", param, "unsupported_content")
            if not isinstance(part.get("text"), str):
                raise bad_request(f"{param}.text: must be a string", f"{param}.text")
            texts.append(part["text"])
        content = "".join(texts)
    if content is None:
        content = ""
    plain: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        plain["name"] = message.name
    return plain
