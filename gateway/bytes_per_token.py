"""How many bytes of a request's body make a prompt token, learned per model from the `usage` of answers."""

PRIOR = 4.0
"""Bytes per token before anything was learned: English text with today's vocabularies has 4 to 4.5."""
LOWEST, HIGHEST = 1.0, 16.0
"""Ratios outside are of something else than text (pictures, token ids, cached conversations) and teach nothing."""
STEP = 0.1
FULL_TOKENS = 200
"""Prompts from here on count fully; in shorter ones the JSON around the text weighs too much."""
MAX_MODELS = 1000


class BytesPerToken:
    """A moving average per model, in which one odd answer can't do much."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def ratio(self, model: str) -> float:
        return self._ratios.get(model, PRIOR)

    def estimate(self, model: str, num_body_bytes: int) -> int:
        """Prompt tokens, at least 1."""
        return round(num_body_bytes / self._ratios.get(model, PRIOR)) or 1

    def learn(self, model: str, num_body_bytes: int, prompt_tokens: int) -> None:
        if prompt_tokens <= 0 or num_body_bytes <= 0:
            return
        seen = num_body_bytes / prompt_tokens
        if not LOWEST <= seen <= HIGHEST or (model not in self._ratios and len(self._ratios) >= MAX_MODELS):
            return
        ratio = self.ratio(model)
        change = seen - ratio
        if not -0.5 * ratio <= change <= ratio:  # further off than half or twice as many
            change = -0.5 * ratio if change < 0.0 else ratio
        weight = STEP if prompt_tokens >= FULL_TOKENS else STEP * prompt_tokens / FULL_TOKENS
        self._ratios[model] = ratio + weight * change
