"""The page on this machine's own address, for nobody else."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"


class PageServer(ThreadingHTTPServer):
    """One page at `/`. A request that reached us under another name (a rebound host) is refused."""

    daemon_threads = True

    def __init__(self, page: str, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.page = page.encode("utf-8")

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        names = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in names:
            return self.send_error(403, "This page is served to this machine only")
        if self.path.split("?")[0] != "/":
            return self.send_error(404)
        self.send_response(200)
        for name, value in {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(self.server.page)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the library does not print."""
