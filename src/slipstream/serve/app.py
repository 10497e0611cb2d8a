"""The HTTP application: routes, limits and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse

from slipstream import __version__
from slipstream.serve import errors
from slipstream.serve.admission import BodyLimit
from slipstream.serve.config import ServerConfig
from slipstream.serve.logs import RequestLog
from slipstream.serve.models import Opener
from slipstream.serve.ollama.routes import add_ollama
from slipstream.serve.openai.audio import respond_transcription
from slipstream.serve.openai.generation import respond
from slipstream.serve.openai.response_schema import ResponseRequest
from slipstream.serve.openai.schema import ChatRequest, CompletionRequest
from slipstream.serve.openai.start import start, start_response
from slipstream.serve.page_routes import add_page
from slipstream.serve.state import ServerState


def create_app(config: ServerConfig, open_model: Opener | None = None) -> FastAPI:
    """`open_model` opens a model by its name; by default as `config.engine` says."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state = app.state.server = ServerState(config, open_model)
        loading = asyncio.create_task(_load(app, config.models[0]))
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


async def _load(app: FastAPI, name: str) -> None:
    """Load the first model. A server without it has nothing to do, so it stops; `failed` says why."""
    try:
        await app.state.server.pool.load(name)
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
        server.admission.key(http.headers.get("authorization"))
        return {"object": "list", "data": [_model(server, name) for name in server.pool.names]}

    @app.get("/v1/models/{name:path}")
    async def model(http: Request, name: str) -> dict[str, Any]:
        server = state(http)
        server.admission.key(http.headers.get("authorization"))
        if name not in server.pool.names:
            raise server.pool.unknown(name)
        return _model(server, name)

    @app.get("/health")
    async def health(http: Request) -> Response:
        pool = state(http).pool
        status = "ready" if pool.ready else "stopping" if pool.closing else "loading"
        return JSONResponse({"status": status}, 200 if pool.ready else 503)

    @app.get("/v1/slipstream")
    async def about(http: Request) -> dict[str, Any]:
        """What the page shows of the server: its model, what one may choose from, and counts since the start."""
        server = state(http)
        server.admission.key(http.headers.get("authorization"))
        return _about(server)

    @app.get("/metrics")
    async def metrics(http: Request) -> Response:
        return Response(state(http).metrics.write(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _about(server: ServerState) -> dict[str, Any]:
    first = next(iter(server.pool.loaded), None)
    about: dict[str, Any] = {"ready": server.pool.ready, "model": server.pool.names[0]}
    about |= {"drafter": server.config.engine.drafter, "drafters": [], "rules": [], "stats": {}}
    if first is None:
        return about
    offered = first.engine.capabilities
    drafters = [name for name in offered.drafters if name not in ("none", "draft_model", "table")]
    return about | {
        "model": first.name,
        "label": first.engine.label,
        "drafters": drafters,
        "rules": list(offered.rules),
        "logprobs": offered.logprobs and "logprobs" not in offered.not_drafting,
        "stats": first.engine.stats,
        "joules": server.joules,
    }


def _model(server: ServerState, name: str) -> dict[str, Any]:
    loaded = next((model for model in server.pool.loaded if model.name == name), None)
    entry: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "slipstream"}
    if loaded is None:
        return entry | {"loaded": False}
    info = loaded.engine.model_info
    return entry | {
        "created": loaded.created,
        "loaded": True,
        "label": info.label,
        "max_model_len": info.context_length,
        "drafter": server.config.engine.drafter,
    }
