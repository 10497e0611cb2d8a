"""Ollama's API: `/api/generate`, `/api/chat`, `/api/tags`, `/api/show`, `/api/ps`, `/api/version`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from slipstream import __version__
from slipstream.engines.prompt import Prompt
from slipstream.serve.errors import ApiError, failure_status
from slipstream.serve.ollama.schema import OllamaChat, OllamaGenerate, OllamaShow
from slipstream.serve.state import ServerState
from slipstream.serve.streams import SampleStreams

NANO = 1_000_000_000


def add_ollama(app: FastAPI) -> None:
    @app.post("/api/generate")
    async def generate(http: Request, body: OllamaGenerate) -> Response:
        system = [{"role": "system", "content": body.system}] if body.system else []
        prompt: Prompt = body.prompt
        if not body.raw and system:
            prompt = [*system, {"role": "user", "content": body.prompt}]
        return await _respond(http, body, prompt, body.raw)

    @app.post("/api/chat")
    async def chat(http: Request, body: OllamaChat) -> Response:
        if not body.messages:
            raise ApiError(400, "messages is empty; send at least one", "messages")
        return await _respond(http, body, [message.model_dump() for message in body.messages], False)

    @app.get("/api/tags")
    async def tags(http: Request) -> dict[str, Any]:
        server = _server(http)
        return {"models": [_model(server, name) for name in server.pool.names]}

    @app.get("/api/ps")
    async def running(http: Request) -> dict[str, Any]:
        server = _server(http)
        return {"models": [_model(server, model.name) for model in server.pool.loaded]}

    @app.post("/api/show")
    async def show(http: Request, body: OllamaShow) -> dict[str, Any]:
        server, name = _server(http), _known(_server(http), body.model or body.name or "")
        async with server.pool.use(name) as served:
            info = served.engine.model_info
            return {
                "details": _model(server, name)["details"],
                "model_info": {"general.name": info.label, "general.context_length": info.context_length},
                "capabilities": ["completion"],
                "template": str(getattr(served.engine.text.tokenizer, "chat_template", None) or ""),
                "parameters": "",
                "modelfile": "",
            }

    @app.get("/api/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}


def _server(http: Request) -> ServerState:
    server: ServerState = http.app.state.server
    server.admission.key(http.headers.get("authorization"))
    return server


def _known(server: ServerState, name: str) -> str:
    """Ollama's clients add `:latest` to a name without a tag."""
    short = name.removesuffix(":latest")
    return short if name not in server.pool.names and short in server.pool.names else name


def _model(server: ServerState, name: str) -> dict[str, Any]:
    loaded = next((model for model in server.pool.loaded if model.name == name), None)
    quantised = loaded.engine.model_info.quantised if loaded else None
    details = {"format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": quantised or ""}
    when = datetime.fromtimestamp(loaded.created if loaded else 0, UTC).isoformat()
    return {"name": name, "model": name, "modified_at": when, "size": 0, "digest": "", "details": details}


async def _respond(http: Request, body: OllamaGenerate | OllamaChat, prompt: Prompt, raw: bool) -> Response:
    server, began = http.app.state.server, time.perf_counter()
    async with AsyncExitStack() as stack:
        tenant = server.enter(stack, http)
        served = await stack.enter_async_context(server.pool.use(_known(server, body.model)))
        server.log_prompt(body)
        loaded = time.perf_counter()
        try:
            options = replace(body.generation(served.engine, raw), tenant=tenant)
            (handle,) = await asyncio.to_thread(served.engine.submit, prompt, body.sampling(), options)
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        stack.callback(handle.cancel)
        samples = SampleStreams([handle], server.wakeups)
        answer = OllamaAnswer(server, samples, body.model, isinstance(body, OllamaChat), began, loaded)
        if body.stream:
            return StreamingResponse(answer.stream(stack.pop_all()), media_type="application/x-ndjson")
        try:
            return JSONResponse(await answer.whole())
        except TimeoutError as error:
            raise ApiError(408, f"the request took more than {server.limits.max_seconds:g} seconds") from error


class OllamaAnswer:
    """One answer, whole or as lines of JSON."""

    def __init__(
        self, server: ServerState, samples: SampleStreams, model: str, chat: bool, began: float, loaded: float
    ) -> None:
        self._server, self._samples, self._model, self._chat = server, samples, model, chat
        self._began, self._loaded, self._first = began, loaded, 0.0
        self._timer = server.metrics.timer()

    async def whole(self) -> dict[str, Any]:
        text = "".join([piece async for piece in self._texts()])
        return self._line(text, done=False) | self._end()

    async def stream(self, stack: AsyncExitStack) -> AsyncIterator[str]:
        async with stack:
            try:
                async for text in self._texts():
                    if text:
                        yield _json(self._line(text, done=False))
                yield _json(self._line("", done=False) | self._end())
            except (ApiError, TimeoutError) as error:
                yield _json({"error": str(error) or "the request took too long"})

    async def _texts(self) -> AsyncIterator[str]:
        async for batch in self._samples.batches(self._server.limits.max_seconds):
            self._first = self._first or time.perf_counter()
            for _, chunk in batch:
                self._timer.chunk(chunk)
                if chunk.finish_reason in ("error", "cancelled"):
                    raise ApiError(failure_status(chunk.error), chunk.error or "the server is shutting down")
                yield chunk.text

    def _line(self, text: str, done: bool) -> dict[str, Any]:
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"response": text}
        return {"model": self._model, "created_at": datetime.now(UTC).isoformat()} | content | {"done": done}

    def _end(self) -> dict[str, Any]:
        """The last line: why it ended, counts, and times in nanoseconds."""
        (sample,) = self._samples.completions
        self._timer.done(sample, prompt=True)
        now = time.perf_counter()
        return {
            "done": True,
            "done_reason": sample.finish_reason,
            "total_duration": int((now - self._began) * NANO),
            "load_duration": int((self._loaded - self._began) * NANO),
            "prompt_eval_count": sample.prompt_tokens,
            "prompt_eval_duration": int(max(0.0, self._first - self._loaded) * NANO),
            "eval_count": sample.completion_tokens,
            "eval_duration": int((now - (self._first or now)) * NANO),
        }


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"
