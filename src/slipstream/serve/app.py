"""The HTTP application: routes, limits and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse

from slipstream import __version__
from slipstream.serve import errors
from slipstream.serve.admission import BodyLimit
from slipstream.serve.config import ServerConfig
from slipstream.serve.local_shared import LocalShared
from slipstream.serve.logs import RequestLog
from slipstream.serve.metrics import Metrics
from slipstream.serve.models import Opener, unknown_model
from slipstream.serve.ollama.routes import add_ollama
from slipstream.serve.openai.audio import respond_transcription
from slipstream.serve.openai.generation import respond
from slipstream.serve.openai.response_schema import ResponseRequest
from slipstream.serve.openai.schema import ChatRequest, CompletionRequest
from slipstream.serve.openai.start import start, start_response
from slipstream.serve.page_routes import add_page
from slipstream.serve.shared import ModelEntry, Shared
from slipstream.serve.state import ServerState


def create_app(
    config: ServerConfig, open_model: Opener | None = None, connect: Callable[[Metrics], Shared] | None = None
) -> FastAPI:
    """`open_model` opens a model by its name; by default as `config.engine` says. `connect`: models, places and counts
    are those of another process, which is given the counts of this one."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        metrics = Metrics()

        async def own_counts() -> list[Metrics]:
            return [metrics]

        shared = connect(metrics) if connect else LocalShared(config, open_model, own_counts)
        state = app.state.server = ServerState(config, shared, metrics)
        loading = asyncio.create_task(_load(app))
        yield
        loading.cancel()
        await state.close()

    app = FastAPI(title="slipstream", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.failed, app.state.ready, app.state.stop = None, _nothing, _nothing
    errors.install(app)
    limits = config.limits
    app.add_middleware(BodyLimit, max_body=limits.max_body, seconds=limits.read_seconds, max_audio=limits.max_audio)
    app.add_middleware(RequestLog)
    if config.cors_origins:
        methods = headers = ["*"]
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.cors_origins), allow_methods=methods, allow_headers=headers
        )
    _routes(app)
    add_ollama(app)
    add_page(app)
    return app


async def _load(app: FastAPI) -> None:
    """Load the first model. A server without it has nothing to do, so it stops; `failed` says why."""
    try:
        await app.state.server.shared.begin()
    except Exception as error:
        app.state.failed = error
        app.state.stop()
    else:
        app.state.ready()


def _nothing() -> None:
    """What `run` puts in place of this is called when the first model is there, or cannot be had."""


def _routes(app: FastAPI) -> None:
    def state(http: Request) -> ServerState:
        server: ServerState = http.app.state.server
        return server

    @app.post("/v1/chat/completions")
    async def chat(http: Request, body: ChatRequest) -> Response:
        return await respond(state(http), http, body, start)

    @app.post("/v1/completions")
    async def completions(http: Request, body: CompletionRequest) -> Response:
        return await respond(state(http), http, body, start)

    @app.post("/v1/responses")
    async def responses(http: Request, body: ResponseRequest) -> Response:
        return await respond(state(http), http, body, start_response)

    @app.post("/v1/audio/transcriptions")
    async def transcriptions(http: Request) -> Response:
        return await respond_transcription(state(http), http, "transcribe")

    @app.post("/v1/audio/translations")
    async def translations(http: Request) -> Response:
        return await respond_transcription(state(http), http, "translate")

    @app.get("/v1/models")
    async def models(http: Request) -> dict[str, Any]:
        server = state(http)
        server.check_key(http)
        return {"object": "list", "data": [_model(server, entry) for entry in await server.shared.models()]}

    @app.get("/v1/models/{name:path}")
    async def model(http: Request, name: str) -> dict[str, Any]:
        server = state(http)
        server.check_key(http)
        if name not in server.config.models:
            raise unknown_model(name, server.config.models)
        return next(_model(server, entry) for entry in await server.shared.models() if entry.name == name)

    @app.get("/health")
    async def health(http: Request) -> Response:
        status = await state(http).shared.status()
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    @app.get("/v1/slipstream")
    async def about(http: Request) -> dict[str, Any]:
        """What the page shows of the server: its model, what one may choose from, and counts since the start."""
        server = state(http)
        server.check_key(http)
        return await server.shared.about()

    @app.get("/metrics")
    async def metrics(http: Request) -> Response:
        return Response(await state(http).shared.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _model(server: ServerState, model: ModelEntry) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": model.name, "object": "model", "created": model.created, "owned_by": "slipstream"}
    if model.info is None:
        return entry | {"loaded": False}
    return entry | {
        "loaded": True,
        "label": model.info.label,
        "max_model_len": model.info.context_length,
        "drafter": server.config.engine.drafter,
    }
