"""What a request costs a replica, in seconds: `a · uncached prompt tokens + b · output tokens`."""


class CostModel:
    """Linear in both token counts; `a` and `b` are properties of the replica and its model."""

    def __init__(self, *, prefill_s_per_token: float, decode_s_per_token: float) -> None:
        """Seconds a prompt token (`a`) and an output token (`b`) take; both above 0."""
        self.prefill_s_per_token = prefill_s_per_token
        self.decode_s_per_token = decode_s_per_token

    def prefill_s(self, prompt_tokens: int) -> float:
        return self.prefill_s_per_token * prompt_tokens

    def cost_s(self, prompt_tokens: int, output_tokens: int) -> float:
        return self.prefill_s_per_token * prompt_tokens + self.decode_s_per_token * output_tokens

    def budget_tokens(self, prompt_tokens: int, output_tokens: int) -> float:
        """The weighted token budget: the cost in output tokens, so that a prompt token counts for what it costs."""
        decode_s_per_token = self.decode_s_per_token
        return (self.prefill_s_per_token * prompt_tokens + decode_s_per_token * output_tokens) / decode_s_per_token
