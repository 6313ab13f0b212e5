"""A loopback stand-in for a book server whose faults a test can choose."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class BookServer(ThreadingHTTPServer):
    """Serves `files` by path.

    Attributes:
        files: path to content.
        requests: path of every request, in order.
        agents: who asked.
        faults: what to do wrong, one for each request to come: "cut" or a status.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.agents: set[str] = set()
        self.faults: list[str] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: BookServer

    def do_GET(self) -> None:
        server = self.server
        server.requests.append(self.path)
        server.agents.add(self.headers.get("User-Agent", ""))
        fault = server.faults.pop(0) if server.faults else ""
        if fault.isdigit() or self.path not in server.files:
            self.send_error(int(fault or 404))
            return
        content = server.files[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[BookServer]:
    with BookServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
