"""The whole web application on a free port, with authenticated clients."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import orjson
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine

from app.main import create_app
from app.schema import migrate
from app.settings import Settings
from tests.support.quiet import quiet_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running service."""

    app: FastAPI
    url: str
    http: httpx.Client

    @property
    def settings(self) -> Settings:
        settings: Settings = self.app.state.settings
        return settings

    @property
    def engine(self) -> Engine:
        engine: Engine = self.app.state.engine
        return engine

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        """GET below the API's base."""
        return self.http.get(f"/api/v1{path}", **arguments)

    def post(self, path: str, document: Any = None, **arguments: Any) -> httpx.Response:
        """POST a JSON document below the API's base."""
        return self.http.post(f"/api/v1{path}", json=document, **arguments)

    def client(self, token: str | None = None, **arguments: Any) -> httpx.Client:
        """Return another client, with a bearer token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **arguments)

    def elsewhere(self) -> httpx.Client:
        """Return a client with its own address: wrong tokens are counted by address."""
        return self.client(transport=httpx.HTTPTransport(local_address=f"127.0.2.{next(_PLACES) % 254 + 1}"))


_PLACES = count(2)


def shown(client: httpx.Client, path: str, headers: httpx.Headers | None = None) -> str:
    """Return the page at `path` as a browser gets it.

    Fails unless it is a 200: something missing on an error page proves nothing.
    """
    asked = httpx.Headers({"Accept": "text/html"})
    asked.update(headers)
    answer = client.get(path, headers=asked)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:300]}"
    return answer.text


@contextmanager
def running_service(settings: Settings) -> Iterator[Service]:
    """Migrate, serve on a free port of this machine, and stop."""
    quiet_logs()
    migrate(settings)
    app = create_app(settings)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="on", proxy_headers=False, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the service did not start"
        time.sleep(0.01)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Service(app=app, url=url, http=client)
    finally:
        app.state.live.close()
        app.state.stopping = True
        server.should_exit = True
        thread.join()
        listener.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One server-sent event."""

    id: str
    type: str
    data: dict[str, Any]


def messages(response: httpx.Response) -> Iterator[Message]:
    """Yield the messages of an event stream; comments and retry hints are skipped."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields:
            yield Message(id=fields["id"], type=fields["event"], data=orjson.loads(fields["data"]))
            fields = {}
