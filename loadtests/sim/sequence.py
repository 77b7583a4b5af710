"""A sequence inside a simulated engine."""

from policies.types import Call

from .kv import ChunkKey, KvPool
from .request import SimRequest


class SimSequence:
    """Implements `SequenceLike` for one call; tokens have counts and no content.

    What it generates has no names, so that only prompts are found in the prefix cache, by it or by others.
    """

    __slots__ = (
        "_block_size",
        "_keys",
        "_kv",
        "_num_indexed",
        "_num_nameless",
        "arrival_s",
        "cached_prompt_tokens",
        "call",
        "computed_tokens",
        "gateway_index",
        "is_aborted",
        "is_running",
        "num_tokens",
        "priority",
        "prompt_tokens",
        "request",
        "scheduled_s",
        "sequence_id",
        "target_tokens",
        "token_s",
    )

    def __init__(
        self,
        sequence_id: int,
        call: Call,
        request: SimRequest,
        gateway_index: int,
        arrival_s: float,
        kv: KvPool,
        block_size: int,
    ) -> None:
        self.sequence_id = sequence_id
        self.call = call
        self.request = request
        self.gateway_index = gateway_index
        self.arrival_s = arrival_s
        self.priority = request.priority
        # A slice computes a prefix of the prompt and one token.
        self.prompt_tokens = call.slice_end_tokens or request.prompt_tokens
        self.num_tokens = self.prompt_tokens
        self.target_tokens = self.prompt_tokens + (request.output_tokens if call.slice_end_tokens is None else 1)
        self.computed_tokens = 0
        self.cached_prompt_tokens = 0
        self.is_running = False
        self.is_aborted = False
        self.scheduled_s: float | None = None
        self.token_s: list[float] = []
        """When each output token was there, as the gateway sees it."""
        self._kv = kv
        self._block_size = block_size
        self._keys: list[ChunkKey] = []  # chunks that it holds by name
        self._num_nameless = 0  # blocks that it holds beside those
        self._num_indexed = 0  # of its prompt's chunks, those that were offered to the index

    @property
    def output_tokens(self) -> int:
        """Generated so far."""
        return self.num_tokens - self.prompt_tokens

    @property
    def held_blocks(self) -> int:
        return len(self._keys) * self._kv.chunk_blocks + self._num_nameless

    @property
    def exclusive_blocks(self) -> int:
        return self._kv.num_exclusive(self._keys) * self._kv.chunk_blocks + self._num_nameless

    @property
    def held_keys(self) -> tuple[ChunkKey, ...]:
        """Chunks that it holds by name, perhaps together with others."""
        return tuple(self._keys)

    @property
    def cached_tokens(self) -> int:
        return len(self._cached()) * self._chunk_tokens

    @property
    def cached_idle_blocks(self) -> int:
        return self._kv.num_idle(self._cached()) * self._kv.chunk_blocks

    @property
    def _chunk_tokens(self) -> int:
        return self._kv.chunk_blocks * self._block_size

    def _cached(self) -> list[ChunkKey]:
        """While waiting; the last token is never among them: it has to be computed."""
        if self.is_running or not self.request.chunk_ids:
            return []
        limit = min(self.num_tokens - 1, self.prompt_tokens) // self._chunk_tokens
        return self._kv.match(self.request.chunk_ids[:limit])

    def start(self) -> None:
        """Waiting → running: holds what the cache has of its prompt."""
        keys = self._cached()
        self._kv.take(keys)
        self._keys = keys
        self._num_indexed = len(keys)
        self.computed_tokens = len(keys) * self._chunk_tokens
        self.is_running = True

    def reserve(self, num_tokens: int) -> None:
        """Holds the blocks for its next tokens."""
        num_blocks = -(-(self.computed_tokens + num_tokens) // self._block_size) - self.held_blocks
        if num_blocks > 0:
            self._kv.allocate(num_blocks)
            self._num_nameless += num_blocks

    def computed(self, num_tokens: int) -> None:
        """Its next tokens are in the cache; whole chunks of the prompt become available to others."""
        self.computed_tokens += num_tokens
        chunk_ids = self.request.chunk_ids
        if self._num_indexed < len(chunk_ids):
            num_whole = min(len(chunk_ids), min(self.computed_tokens, self.prompt_tokens) // self._chunk_tokens)
            while self._num_indexed < num_whole:
                key = chunk_ids[self._num_indexed]
                self._num_indexed += 1
                if self._kv.register(key):
                    self._keys.append(key)
                    self._num_nameless -= self._kv.chunk_blocks

    def stop(self) -> None:
        """Gives back all blocks: finished, or to wait for a recomputation."""
        self._kv.release(self._keys, self._num_nameless)
        self._keys = []
        self._num_nameless = self._num_indexed = self.computed_tokens = 0
        self.is_running = False
