"""Errors as OpenAI's API writes them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

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


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def install(app: FastAPI) -> None:
    """Answer every error in OpenAI's shape."""

    @app.exception_handler(ApiError)
    async def own(_: Request, error: ApiError) -> JSONResponse:
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        body = error_body(error.status, error.message, error.param, error.code)
        return JSONResponse(body, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        message, param = describe(error)
        return JSONResponse(error_body(400, message, param), 400)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 404:
            message = f"there is no {request.method} {request.url.path} here; /openapi.json lists what there is"
        return JSONResponse(error_body(error.status_code, message), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def fault(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(500, f"the server failed: {error!r}"), 500)


def describe(error: RequestValidationError) -> tuple[str, str | None]:
    """The first fault of a request in one sentence, and the parameter it is about."""
    fault = error.errors()[0]
    where = [str(part) for part in fault["loc"] if part != "body"]
    param = ".".join(where) or None
    if fault["type"] == "json_invalid":
        return f"the body is not valid JSON: {fault.get('ctx', {}).get('error', fault['msg'])}", None
    if fault["type"] == "missing":
        return f"{param or 'the body'} is missing", param
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"]), param
    return f"{param or 'the body'}: {fault['msg']}", param


def unknown_parameter(name: str, legal: list[str]) -> str:
    near = get_close_matches(name, legal, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no parameter {name!r}; a request takes {', '.join(legal)}{hint}"
