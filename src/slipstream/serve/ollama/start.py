"""From a request of Ollama's API to a sample under way."""

from __future__ import annotations

import time

from pydantic import ValidationError

from slipstream.engines.prompt import Prompt
from slipstream.serve.config import ServerLimits
from slipstream.serve.errors import ApiError, describe
from slipstream.serve.models import ServedModel
from slipstream.serve.ollama.schema import OllamaChat, OllamaGenerate
from slipstream.serve.ollama.writer import OllamaWriter
from slipstream.serve.openai.start import Started
from slipstream.serve.openai.tools import chat_prompt, tool_use


def start_ollama(
    served: ServedModel, body: OllamaGenerate | OllamaChat, limits: ServerLimits, tenant: str, *, began: float
) -> Started:
    """Check a request that came at `began`, and submit it."""
    engine, loaded, use = served.engine, time.perf_counter(), None
    prompt: Prompt
    try:
        if isinstance(body, OllamaChat):
            chat, raw = body.chat(), False
            use = tool_use(chat, engine.text)
            prompt = chat_prompt(chat, engine.text, use)
        else:
            prompt, raw = body.prompt_or_chat(), body.raw
        handles = engine.start(prompt, body.sampling(), body.generation(engine, raw, tenant))
    except ValidationError as error:
        raise ApiError(400, *describe(error.errors())) from error
    except ValueError as error:
        raise ApiError(400, str(error)) from error
    return Started(handles, OllamaWriter(body.model, isinstance(body, OllamaChat), use, began, loaded))
