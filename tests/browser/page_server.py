"""Files of a directory over HTTP, on a free port: an origin of its own, as a web application has one."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


class _Files(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript"}
    protocol_version = "HTTP/1.0"  # no connection is left over when the server stops

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")  # pages of other origins may import the client, too
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class PageServer:
    def __init__(self, root: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(root)))
        self._thread = threading.Thread(target=self._server.serve_forever, name="pages")
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
