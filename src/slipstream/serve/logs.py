"""One line per request: its id, what it asked for, what it got, and how long that took. Prompts only where asked for.

The fields of a line are collected while the request is answered (`note`), wherever they are known.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("slipstream.serve")
QUIET = ("/health", "/metrics", "/v1/slipstream")  # asked for all the time
LEGAL_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_fields: ContextVar[dict[str, Any] | None] = ContextVar("fields", default=None)


def note(**fields: Any) -> None:
    """Add fields to the line of the request that is being answered. Counts add up over the samples of a request."""
    if (own := _fields.get()) is None:
        return
    for name, value in fields.items():
        both_counts = isinstance(value, int) and isinstance(own.get(name), int)
        own[name] = own[name] + value if both_counts else value


class RequestLog:
    """Gives every request an id (the client's own `X-Request-Id`, if it is a legal one), and logs it at its end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        fields: dict[str, Any] = {"id": given if LEGAL_ID.fullmatch(given) else f"req-{uuid.uuid4().hex[:16]}"}
        fields |= {"method": scope["method"], "path": scope["path"], "status": None}
        began, complete = time.perf_counter(), False

        async def answered(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                fields["status"] = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = fields["id"]
            else:
                complete = not message.get("more_body", False)
            await send(message)

        token = _fields.set(fields)
        try:
            await self._app(scope, receive, answered)
        finally:
            _fields.reset(token)
            if not complete:
                fields["disconnected"] = True
            fields["seconds"] = round(time.perf_counter() - began, 4)
            write_line(fields)


def write_line(fields: dict[str, Any]) -> None:
    status = fields["status"] or 499
    if cycles := fields.get("cycles"):
        fields["tau"] = round(fields["completion_tokens"] / cycles, 3)
    if fields["path"] in QUIET or (status < 400 and fields["method"] == "GET"):
        return
    level = logging.INFO if status < 500 else logging.ERROR
    logger.log(level, "request", extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """A line of JSON: time, level, and the fields of a request or the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": _time(record), "level": record.levelname.lower()}
        line |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainFormatter(logging.Formatter):
    """The same for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        if fields is None:
            return f"{_time(record)} {super().format(record)}"
        head = ("method", "path", "status", "seconds")
        rest = " ".join(f"{name}={_shown(value)}" for name, value in fields.items() if name not in head)
        path = fields["path"] if fields["path"].isprintable() else repr(fields["path"])
        return f"{_time(record)} {fields['method']} {path} {fields['status']} {fields['seconds']:.3f}s {rest}"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, str | list | dict) else str(value)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class StderrHandler(logging.Handler):
    """Writes to standard error as it is when a line is written. The stream of the start may have been closed."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def start_logging(form: str) -> None:
    """Log to standard error: the server's requests (not in the form `quiet`), and the warnings of the HTTP library."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter("%(levelname)s %(message)s"))
    requests = logging.WARNING if form == "quiet" else logging.INFO
    for name, level in (("slipstream.serve", requests), ("uvicorn", logging.WARNING)):
        own = logging.getLogger(name)
        own.handlers, own.propagate = [handler], False
        own.setLevel(level)
