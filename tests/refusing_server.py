"""A server that knows nobody, for programs that would else try one elsewhere until they give up."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator


class _Refusing(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b'{"error_code": "PERMISSION_DENIED", "message": "wrong key"}')

    do_GET = do_PUT = do_POST

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def refusing_server() -> Iterator[str]:
    """Its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
