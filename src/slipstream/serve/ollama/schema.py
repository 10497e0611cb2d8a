"""Requests as Ollama's API writes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from slipstream.core.sampling import Sampling
from slipstream.engines.base import Engine, GenerationOptions
from slipstream.serve.openai.convert import speculation
from slipstream.serve.openai.schema import SpeculationOptions
from slipstream.serve.openai.strict import RequestBody, Strict, Text


class OllamaOptions(Strict):
    """Sampling with Ollama's own defaults."""

    temperature: float = Field(default=0.8, ge=0)
    top_k: int = Field(default=40, ge=0)
    top_p: float = Field(default=0.9, ge=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = None
    num_predict: int = -1  # negative: as many as the context holds
    stop: Text | list[Text] | None = None
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # accepted, and without effect here: how a model is laid out is the server's own matter
    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    num_keep: int | None = None
    num_thread: int | None = None
    main_gpu: int | None = None
    use_mmap: bool | None = None


class OllamaRequest(RequestBody):
    model: str
    stream: bool = True
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    speculation: SpeculationOptions | None = None
    keep_alive: str | int | float | None = None  # accepted, and without effect
    think: Literal[False] | None = None

    def sampling(self) -> Sampling:
        own = self.options or OllamaOptions()
        penalties = (own.repeat_penalty, own.presence_penalty, own.frequency_penalty)
        seed = None if own.seed is None or own.seed < 0 else own.seed
        return Sampling(own.temperature, own.top_k, own.top_p, own.min_p, seed, *penalties)

    def generation(self, engine: Engine, raw: bool) -> GenerationOptions:
        own = self.options or OllamaOptions()
        stop = [own.stop] if isinstance(own.stop, str) else own.stop or []
        most = own.num_predict if own.num_predict >= 0 else engine.model_info.context_length
        schema = True if self.format == "json" else self.format or None
        return GenerationOptions(
            max_tokens=most,
            stop=tuple(text for text in stop if text),
            json_schema=schema,
            speculation=speculation(self.speculation),
            raw=raw,
        )


class OllamaGenerate(OllamaRequest):
    prompt: Text = ""
    system: Text | None = None
    raw: bool = False


class OllamaMessage(Strict):
    role: Literal["system", "user", "assistant"]
    content: Text = ""


class OllamaChat(OllamaRequest):
    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[Any] = Field(default_factory=list, max_length=0, description="Not offered; clients send an empty list.")


class OllamaShow(RequestBody):
    model: str | None = None
    name: str | None = None
    verbose: bool = False
