"""The page at `/`: static files from this package, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response

from slipstream.serve.errors import ApiError

FOLDER = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    files = {path.name: path for path in FOLDER.iterdir() if path.suffix in TYPES}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _answer(files["index.html"])

    @app.get("/{name}", include_in_schema=False)
    async def part(name: str, http: Request) -> Response:
        if name not in files:
            raise ApiError(404, f"there is no GET {http.url.path} here; /openapi.json lists what there is")
        return _answer(files[name])


def _answer(path: Path) -> Response:
    return FileResponse(path, media_type=TYPES[path.suffix], headers=HEADERS)
