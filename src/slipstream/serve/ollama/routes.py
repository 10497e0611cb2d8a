"""Ollama's API: `/api/generate`, `/api/chat`, `/api/tags`, `/api/show`, `/api/ps`, `/api/version`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from slipstream import __version__
from slipstream.serve.errors import ApiError
from slipstream.serve.ollama.schema import OllamaChat, OllamaGenerate, OllamaShow
from slipstream.serve.ollama.start import start_ollama
from slipstream.serve.openai.generation import respond
from slipstream.serve.shared import ModelEntry
from slipstream.serve.state import ServerState


def add_ollama(app: FastAPI) -> None:
    @app.post("/api/generate")
    async def generate(http: Request, body: OllamaGenerate) -> Response:
        return await _respond(http, body)

    @app.post("/api/chat")
    async def chat(http: Request, body: OllamaChat) -> Response:
        if not body.messages:
            raise ApiError(400, "messages is empty; send at least one", "messages")
        return await _respond(http, body)

    @app.get("/api/tags")
    async def tags(http: Request) -> dict[str, Any]:
        return {"models": [_model(entry) for entry in await _server(http).shared.models()]}

    @app.get("/api/ps")
    async def running(http: Request) -> dict[str, Any]:
        return {"models": [_model(entry) for entry in await _server(http).shared.models() if entry.info]}

    @app.post("/api/show")
    async def show(http: Request, body: OllamaShow) -> dict[str, Any]:
        server, name = _server(http), _known(_server(http), body.model or body.name or "")
        async with server.use(name) as served:
            info, text = served.engine.model_info, served.engine.text
            return {
                "details": _model(ModelEntry(name, info=info))["details"],
                "model_info": {"general.name": info.label, "general.context_length": info.context_length},
                "capabilities": ["completion", *(["tools"] if text.tool_template else [])],
                "template": str(getattr(text.tokenizer, "chat_template", None) or ""),
                "parameters": "",
                "modelfile": "",
            }

    @app.get("/api/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}


def _server(http: Request) -> ServerState:
    server: ServerState = http.app.state.server
    server.check_key(http)
    return server


def _known(server: ServerState, name: str) -> str:
    """Ollama's clients add `:latest` to a name without a tag."""
    short = name.removesuffix(":latest")
    names = server.config.models
    return short if name not in names and short in names else name


def _model(entry: ModelEntry) -> dict[str, Any]:
    quantised = entry.info.quantised if entry.info else None
    details = {"format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": quantised or ""}
    when, name = datetime.fromtimestamp(entry.created, UTC).isoformat(), entry.name
    return {"name": name, "model": name, "modified_at": when, "size": 0, "digest": "", "details": details}


async def _respond(http: Request, body: OllamaGenerate | OllamaChat) -> Response:
    server, begin = http.app.state.server, partial(start_ollama, began=time.perf_counter())
    return await respond(server, http, body, begin, _known(server, body.model))
