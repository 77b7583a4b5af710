"""A model of the package `langchain-openai` at a gateway."""

from typing import Any

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from .entrance import Entrance


def chat_model(entrance: Entrance, **options: Any) -> ChatOpenAI:
    """A model at this gateway."""
    url = f"{entrance.url}/v1"
    return ChatOpenAI(model=entrance.model, base_url=url, api_key=SecretStr("none"), max_retries=0, **options)
