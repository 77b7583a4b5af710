"""The HTTP face of the engine: OpenAI's routes, with vLLM's additions."""
