"""How many tokens a request will produce, learned from what was served."""

from collections import OrderedDict

from ..types import RequestLike
from .window import RecentQuantiles

_Key = tuple[str, str, int]


class OutputQuantiles:
    """A quantile of recent output lengths by tenant × route × prompt-length bin, falling back to all requests pooled.

    Prompt lengths are binned by powers of two. The caller's own bound always caps the prediction. Memory is bounded:
    the keys least recently used are forgotten.
    """

    def __init__(self, *, quantile: float, prior_tokens: int, window: int, min_samples: int, max_keys: int) -> None:
        """`prior_tokens`: predicted while nothing was seen. `min_samples`: fewer in a key and the pool answers."""
        self._quantile = quantile
        self._prior_tokens = prior_tokens
        self._window = window
        self._min_samples = min_samples
        self._max_keys = max_keys
        self._by_key: OrderedDict[_Key, RecentQuantiles] = OrderedDict()
        self._pooled = RecentQuantiles(window)

    def predict(self, request: RequestLike) -> int:
        """Output tokens over all choices, at least 1 unless the caller bounds it at 0."""
        history = self._by_key.get(_key(request))
        if history is None or len(history) < self._min_samples:
            history = self._pooled
        expected = int(history.quantile(self._quantile)) if len(history) >= self._min_samples else self._prior_tokens
        expected *= request.num_choices
        bound = request.max_output_tokens
        return expected if bound is None or bound > expected else bound

    def learn(self, request: RequestLike, output_tokens: int) -> None:
        """`output_tokens`: over all choices; what is remembered is the length of one."""
        key = _key(request)
        history = self._by_key.get(key)
        if history is None:
            history = self._by_key[key] = RecentQuantiles(self._window)
            if len(self._by_key) > self._max_keys:
                self._by_key.popitem(last=False)
        self._by_key.move_to_end(key)
        choice_tokens = output_tokens / request.num_choices
        history.add(choice_tokens)
        self._pooled.add(choice_tokens)


def _key(request: RequestLike) -> _Key:
    return (request.tenant, request.route, request.prompt_tokens.bit_length())
