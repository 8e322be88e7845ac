"""The REST API as commands call it: over HTTP if a service is named, else in-process on the data directory.

Both ways run the same routes, so the answers are the same.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from pydantic import ValidationError

from app.cli.exits import CommandError, Exit, of_status
from app.settings import ClientSettings, Settings, refusals

if TYPE_CHECKING:
    from fastapi import FastAPI
    from sqlalchemy import Engine

    from app.cli.tap import Tap

BASE: Final = "/api/v1"
SECONDS: Final = 120.0
LOCAL_URL: Final = "http://127.0.0.1"


class Client:
    """Calls the API; `local` is its application if it runs in this process."""

    def __init__(self, settings: ClientSettings, local: "FastAPI | None" = None) -> None:
        self._local = local
        bearer = settings.bearer if local is None else None
        self._headers = {b"Authorization": f"Bearer {bearer}".encode()} if bearer else {}
        self._url = settings.base_url if local is None else LOCAL_URL
        self._http = self._connection() if local is None else None
        _open.append(self)

    def _connection(self) -> httpx.Client:
        try:
            return httpx.Client(base_url=self._url, headers=self._headers, timeout=SECONDS)
        except httpx.InvalidURL as error:
            raise CommandError(Exit.USAGE, f"DDP_AUDIT_HOST gives an invalid address, {self._url}: {error}") from None

    def close(self) -> None:
        """Close the connection to the service or the database."""
        if self._http is not None:
            self._http.close()
        else:
            self.engine.dispose()

    @property
    def remote(self) -> bool:
        """Whether it talks to a service over HTTP."""
        return self._http is not None

    @property
    def settings(self) -> Settings:
        """Settings of the data directory it works on. Raises ValueError for a remote client."""
        settings: Settings = self._inside().state.settings
        return settings

    @property
    def engine(self) -> "Engine":
        """Database it works on. Raises ValueError for a remote client."""
        engine: Engine = self._inside().state.engine
        return engine

    def _inside(self) -> "FastAPI":
        if self._local is None:
            raise ValueError("this client talks to a service; it has no data directory")
        return self._local

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON answer of a GET; parameters that are None are left out."""
        given = {name: value for name, value in params.items() if value is not None}
        return self.answer(self._send("GET", path, params=given)).json()

    def download(self, path: str, write: Callable[[bytes], Any], **params: Any) -> None:
        """Pass the file that a GET returns to `write`, piece by piece.

        Raises CommandError, also if the file is cut short, and what `write` raises.
        """
        given = {name: value for name, value in params.items() if value is not None}
        if self._http is None:
            self._download_inside(path, write, given)
            return
        with self.reachable(), self._http.stream("GET", BASE + path, params=given) as response:
            if not response.is_success:
                response.read()
            self.answer(response)
            for piece in response.iter_bytes():
                write(piece)

    def _download_inside(self, path: str, write: Callable[[bytes], Any], params: dict[str, Any]) -> None:
        from app.cli.tap import Tap

        tap = Tap(self._inside(), write)
        answer = asyncio.run(self._send_inside("GET", path, through=tap, params=params))
        try:
            tap.finish()
        except EOFError:
            raise CommandError(Exit.FAILED, f"{path} was cut short; see the messages above") from None
        self.answer(answer)

    def post(
        self,
        path: str,
        document: Any = None,
        files: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the JSON answer of a POST with a JSON body or files."""
        return self.answer(self._send("POST", path, json=document, files=files, headers=headers)).json()

    def send_file(self, path: str, file: Path, **params: Any) -> Any:
        """Return the JSON answer of a POST whose body is a zip archive; only over HTTP."""
        with file.open("rb") as body:
            headers = {"Content-Type": "application/zip"}
            return self.answer(self._send("POST", path, params=params, content=body, headers=headers)).json()

    def patch(self, path: str, document: Any) -> Any:
        """Return the JSON answer of a PATCH."""
        return self.answer(self._send("PATCH", path, json=document)).json()

    def delete(self, path: str) -> None:
        """Send a DELETE."""
        self.answer(self._send("DELETE", path))

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        if self._http is None:
            return asyncio.run(self._send_inside(method, path, **arguments))
        with self.reachable():
            return self._http.request(method, BASE + path, **arguments)

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Turn a service that does not answer into a CommandError."""
        try:
            yield
        except httpx.TransportError as error:
            message = f"the service at {self._url} cannot be reached ({error or type(error).__name__})"
            raise CommandError(Exit.UNREACHABLE, message) from None

    async def _send_inside(
        self, method: str, path: str, through: "Tap | None" = None, **arguments: Any
    ) -> httpx.Response:
        app = self._inside()
        transport = httpx.ASGITransport(through or app, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url=self._url, timeout=SECONDS) as client:
                return await client.request(method, BASE + path, **arguments)
        finally:
            await app.state.classifier.close()

    def streaming(self, silence: float) -> httpx.AsyncClient:
        """Return a client for answers that take as long as a run; `silence` is the longest pause in seconds."""
        timeout = httpx.Timeout(SECONDS, read=silence)
        return httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=timeout)

    def answer(self, response: httpx.Response) -> httpx.Response:
        """Return a successful answer, its body read or not.

        Raises CommandError for a problem, after reading its body.
        """
        if response.is_success:
            return response
        try:
            problem = response.json()
            message = str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            message = f"{self._url} answered {response.status_code} and is not a ddp-audit service"
            raise CommandError(Exit.UNREACHABLE, message) from None
        if problem.get("code") == "database_unavailable" and not self.remote and self.settings.database_url:
            message = f"{message}, or correct DDP_AUDIT_DATABASE_URL"
        raise CommandError(of_status(response.status_code), message, problem)


_open: Final[list[Client]] = []


def close_clients() -> None:
    """Close every client this process has opened."""
    while _open:
        _open.pop().close()


def open_client(data_dir: Path | None = None) -> Client:
    """Return a client of the named service, or of the data directory with its database at the newest schema.

    An explicit data directory takes precedence over a named service.
    """
    named = _named()
    if named.remote and data_dir is None:
        return Client(named)
    from app.assembly import create_local_api

    return Client(named, create_local_api(ready_settings(data_dir=data_dir)))


def names_service() -> bool:
    """Return whether a service was named. Raises CommandError for invalid settings."""
    return _named().remote


def _named() -> ClientSettings:
    with told_settings():
        return ClientSettings()


def local_settings(**overrides: Any) -> Settings:
    """Return settings for work on the data directory; the host a service would listen on does not matter here."""
    from app.settings import load_settings

    with told_settings():
        return load_settings(host="127.0.0.1", **overrides)


@contextmanager
def told_settings() -> Iterator[None]:
    """Turn invalid settings into a CommandError that names each of them."""
    try:
        yield
    except ValidationError as error:
        raise CommandError(Exit.USAGE, refusals(error)) from None


def ready_settings(**overrides: Any) -> Settings:
    """Return such settings after migrating the database to the newest schema; from then on, log only warnings."""
    settings = local_settings(**overrides)
    log_warnings(settings)
    bring_up_to_date(settings)
    return settings


def log_warnings(settings: Settings) -> None:
    """Keep log lines out of the answer on standard output, and hide lines that are only informational."""
    from app.logs import configure

    configure(settings, level=logging.WARNING)


def bring_up_to_date(settings: Settings) -> tuple[str | None, str]:
    """Migrate the database and return (version before, version after). Raises CommandError for a newer database."""
    from sqlalchemy.exc import SQLAlchemyError

    from app.db import first_line, place_of
    from app.schema import DatabaseRefused, migrate

    try:
        return migrate(settings)
    except DatabaseRefused as error:
        raise CommandError(Exit.USAGE, str(error)) from None
    except (SQLAlchemyError, OSError) as error:
        raise CommandError(Exit.FAILED, f"{place_of(settings)} cannot be used: {first_line(error)}") from None
