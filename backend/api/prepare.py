"""A checked body → generation requests, within the limits."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..sampler import SamplingParams
from ..sequence import GenerationRequest
from . import refusals
from .errors import ApiError, bad_request, from_validation
from .fields import ChatBody, CompletionBody, GenerationBody, StreamOptions
from .prompts import TOO_LONG, Prompts, Tokenizer, check_ids, read_prompts

_MAX_CHOICES = 1024
# Each is looked for in the text of every token.
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 4096
_MAX_PRIORITY = (1 << 31) - 1
# OpenAI's and vLLM's default of text completions. Chat has none: the rest of the context.
_DEFAULT_COMPLETION_TOKENS = 16

B = TypeVar("B", bound=BaseModel)


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
    """Turns bodies into requests. Tokenising runs on `pool`."""

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
        self.prompts = Prompts(tokenizer, pool, max_model_len)
        self._clock = clock

    async def chat(self, fields: Mapping[str, Any], header_priority: str | None) -> Prepared:
        """A chat completion. Raises `ApiError`."""
        arrival_s = self._clock()
        refusals.refuse_unsupported(fields, refusals.CHAT)
        body = validate(ChatBody, fields)
        if body.top_logprobs and not body.logprobs:
            raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
        token_ids = await self.prompts.chat_tokens(body.messages, add_generation_prompt=body.add_generation_prompt)
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
        prompts = read_prompts(body.prompt, self.prompts.vocab_size)
        max_tokens = _DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        add_special_tokens = body.add_special_tokens is not False
        token_ids: list[Sequence[int]] = []
        for prompt in prompts:
            if isinstance(prompt, str):
                prompt = await self.prompts.text_tokens(prompt, add_special_tokens=add_special_tokens)
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
                raise self.prompts.too_long(str(len(item)), "prompt")

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
                    stop_token_ids=frozenset(check_ids(body.stop_token_ids or [], self.prompts.vocab_size)),
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
            raise self.prompts.too_long(str(num_prompt_tokens), prompt_param)
        if max_tokens is not None and max_tokens > room:
            raise bad_request(
                f"the prompt has {num_prompt_tokens} tokens and {max_tokens_param} is {max_tokens}, "
                f"{num_prompt_tokens + max_tokens} together; this model's context is {self.max_model_len} tokens",
                max_tokens_param,
                TOO_LONG,
            )
        return room


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
