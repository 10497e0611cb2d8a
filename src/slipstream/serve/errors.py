"""Errors as OpenAI's API writes them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from slipstream.engines.completion import DEAD_END
from slipstream.serve.logs import note

TRIED = ("str", "int", "float", "bool", "message", "function_call", "function_call_output")
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable"}


class ApiError(Exception):
    """One sentence for the client, with an HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        """It can be sent to another process."""
        return ApiError, (self.status, self.message, self.param, self.code, self.retry_after)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def failure_status(error: str | None) -> int:
    """The status for a request that the engine ended with an error."""
    return 400 if error == DEAD_END else 500


def _answer(
    request: Request, status: int, message: str, param: str | None = None, code: str | None = None, **headers: str
) -> JSONResponse:
    """In OpenAI's shape, or in Ollama's where its API was called."""
    note(error=message)
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": message}, status, headers)
    return JSONResponse(error_body(status, message, param, code), status, headers)


def install(app: FastAPI) -> None:
    """Answer every error as the client expects it."""

    @app.exception_handler(ApiError)
    async def own(request: Request, error: ApiError) -> JSONResponse:
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return _answer(request, error.status, error.message, error.param, error.code, **headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        message, param = describe(error.errors())
        return _answer(request, 400, message, param)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 400:  # what FastAPI says of a body that it cannot decode
            message = (
                "the body cannot be read; it must be JSON in UTF-8, neither nested too deeply nor with huge numbers"
            )
        if error.status_code == 404:
            message = f"there is no {request.method} {request.url.path} here; /openapi.json lists what there is"
        return _answer(request, error.status_code, message, **dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        return _answer(request, 500, f"the server failed: {error!r}")


def describe(faults: Sequence[Any]) -> tuple[str, str | None]:
    """The first fault of a request in one sentence, and the parameter it is about."""
    fault = faults[0]
    where = [str(part) for part in fault["loc"] if part != "body" and not _is_type(part)]
    param = ".".join(where) or None
    if fault["type"] == "json_invalid":
        return f"the body is not valid JSON: {fault.get('ctx', {}).get('error', fault['msg'])}", None
    if fault["type"] == "missing":
        return f"{param or 'the body'} is missing", param
    if fault["type"] == "value_error":
        error = fault["ctx"]["error"]
        return str(error), ".".join([*where, error.name]) if isinstance(error, UnknownParameter) else param
    return f"{param or 'the body'}: {fault['msg']}", param


def _is_type(part: int | str) -> bool:
    """Whether a part of a location names a type that was tried, not a parameter."""
    return isinstance(part, str) and (part in TRIED or not part.replace("_", "").isalnum() or part != part.lower())


class UnknownParameter(ValueError):
    """`legal` are the names that there are."""

    def __init__(self, name: str, legal: list[str]) -> None:
        near = get_close_matches(name, legal, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        super().__init__(f"there is no parameter {name!r}; a request takes {', '.join(legal)}{hint}")
        self.name = name
