"""The console: a page for browsers at `/`, and the files it is made of below `/assets/`.

The files are part of the package (`console_bundle/`, built from `console/` of the repository). They are few and small, so
they are read once, compressed once, and served from memory; a path that is not one of them is not looked for on the disk.

A file below `/assets/` has a digest of its contents in its name: whoever has it never asks again. The page itself, which
names them, is asked for each time, and answered with 304 when it is the same.

The page signs in with the API like any other client: what is served here is the same for everybody, and knows nobody. The
policy keeps it to its own scripts, styles and server, and out of other pages' frames. Nothing in it needs inline code.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tablecast.errors import MethodNotAllowed, NotFound
from tablecast.server.errors import error_response
from tablecast.server.metrics import Metrics

BUNDLE: Final = Path(__file__).parent / "console_bundle"
PAGE: Final = "index.html"
MEDIA_TYPES: Final = {  # not the machine's own list, which may call a script what no browser runs
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
PACKED: Final = frozenset((".png", ".woff2"))  # by themselves
FOREVER: Final = "public, max-age=31536000, immutable"
EACH_TIME: Final = "no-cache"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'{sockets}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_HOST = re.compile(r"[A-Za-z0-9.-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class _File:
    media_type: str
    plain: bytes
    packed: bytes | None
    etag: str


def console_routes(metrics: Metrics, folder: Path = BUNDLE) -> list[Route]:
    """None where there is no bundle: a checkout whose console was never built."""
    if not (folder / PAGE).is_file():
        return []
    page = _Files({"": _read(folder / PAGE)}, EACH_TIME, metrics)
    assets = {path.name: _read(path) for path in sorted((folder / "assets").glob("*")) if path.is_file()}
    return [Route("/", page), Route("/assets/{file}", _Files(assets, FOREVER, metrics))]


def _read(path: Path) -> _File:
    plain = path.read_bytes()
    media_type = MEDIA_TYPES.get(path.suffix, "application/octet-stream")
    packed = None if path.suffix in PACKED else gzip.compress(plain, mtime=0)
    return _File(media_type, plain, packed, f'"{blake2b(plain, digest_size=16).hexdigest()}"')


class _Files:
    """An ASGI application over files in memory."""

    def __init__(self, files: dict[str, _File], caching: str, metrics: Metrics) -> None:
        self._files = files
        self._caching = caching
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response(scope)(scope, receive, send)

    def _response(self, scope: Scope) -> Response:
        found = self._files.get(scope.get("path_params", {}).get("file", ""))
        if scope["method"] not in ("GET", "HEAD"):
            return self._refused(MethodNotAllowed("the console is read with GET", allow="GET, HEAD"))
        if found is None:
            return self._refused(NotFound("the console has no such file; reload its page at /"))
        asked = Headers(scope=scope)
        headers = SECURITY | {"Cache-Control": self._caching, "ETag": found.etag, "Vary": "Accept-Encoding"}
        headers["Content-Security-Policy"] = POLICY.format(sockets=_sockets(asked.get("host", "")))
        if found.etag in asked.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if found.packed is None or "gzip" not in asked.get("accept-encoding", ""):
            return Response(found.plain, headers=headers, media_type=found.media_type)
        return Response(found.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=found.media_type)

    def _refused(self, error: MethodNotAllowed | NotFound) -> Response:
        self._metrics.error(error.code)
        return error_response(error)


def _sockets(host: str) -> str:
    """Our own live connections: not every browser counts a WebSocket to the same host as 'self'."""
    return f" ws://{host} wss://{host}" if _HOST.fullmatch(host) else ""
