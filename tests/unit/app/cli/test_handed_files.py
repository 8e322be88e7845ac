"""Files written by commands: complete or not at all, from a service and in-process."""

import io
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine
from starlette.responses import PlainTextResponse, StreamingResponse

from app.cli.client import Client, close_clients
from app.cli.exits import CommandError, Exit
from app.cli.files import Write, hand_over, save
from app.settings import ClientSettings

PIECES = 50


def api(broken: bool) -> FastAPI:
    """Return an application whose one file comes in pieces, or is cut short."""
    app = FastAPI()

    class Nothing:
        async def close(self) -> None:
            pass

    app.state.classifier = Nothing()
    app.state.engine = create_engine("sqlite://")

    def pieces() -> Iterator[bytes]:
        for number in range(PIECES):
            if broken and number == PIECES // 2:
                raise RuntimeError("the disk of the service is gone")
            yield b"x" * 1000

    @app.get("/api/v1/file")
    def file() -> StreamingResponse:
        return StreamingResponse(pieces())

    @app.get("/api/v1/refused")
    def refused() -> PlainTextResponse:
        return PlainTextResponse('{"detail": "there is none", "code": "gone"}', 404)

    return app


def client(*, broken: bool = False) -> Client:
    return Client(ClientSettings(), api(broken))


@pytest.fixture(autouse=True)
def clients_are_closed() -> Iterator[None]:
    yield
    close_clients()


def fetching(client: Client, path: str = "/file") -> Callable[[Write], None]:
    return lambda write: client.download(path, write)


def test_file_comes_in_pieces(tmp_path: Path) -> None:
    lengths: list[int] = []
    client().download("/file", lambda piece: lengths.append(len(piece)))
    assert sum(lengths) == PIECES * 1000
    assert max(lengths) <= 1000
    assert save(fetching(client()), tmp_path / "new") == PIECES * 1000


def test_half_a_file_is_none(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("before")
    with pytest.raises(CommandError, match="was cut short") as failure:
        save(fetching(client(broken=True)), target)
    assert failure.value.code is Exit.FAILED
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


class Half(BaseHTTPRequestHandler):
    """Announces more than it sends."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * 10)

    def log_message(self, *_arguments: object) -> None:
        pass


def test_broken_connection_is_unreachable(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Half) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        remote = Client(ClientSettings(port=server.server_port))
        with pytest.raises(CommandError) as failure:
            save(fetching(remote), tmp_path / "file")
        thread.join()
    assert failure.value.code is Exit.UNREACHABLE
    assert list(tmp_path.iterdir()) == []


def test_refusal_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is none") as failure:
        save(fetching(client(), "/refused"), tmp_path / "file")
    assert failure.value.code is Exit.NOT_FOUND
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["missing/file", ""])
def test_unwritable_place_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(CommandError, match="cannot be written") as failure:
        save(fetching(client()), tmp_path / place)
    assert failure.value.code is Exit.FAILED
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_told() -> None:
    with pytest.raises(CommandError, match="No space left") as failure:
        save(fetching(client()), Path("/dev/full"))
    assert failure.value.code is Exit.FAILED
    assert not Path("/dev/full").is_file()


def test_reader_that_leaves_ends_it() -> None:
    taken: list[int] = []

    def write(piece: bytes) -> None:
        taken.append(len(piece))
        if len(taken) == 3:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        client().download("/file", write)
    assert len(taken) == 3


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "real")

    def fetch(write: Write) -> None:
        write(b"after")

    save(fetch, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "after"


class Terminal(io.TextIOWrapper):
    """Standard output of a person at a terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, *pieces: bytes, text: bool = True) -> bytes:
    terminal = Terminal(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", terminal)

    def fetch(write: Write) -> None:
        for piece in pieces:
            write(piece)

    hand_over(fetch, None, {}, as_json=False, text=text)
    terminal.flush()
    return terminal.buffer.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_terminal_is_not_steered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, b"\x1b[31m", b"\xc3", b"\xbc") == "\ufffd[31mü\n".encode()


def test_terminal_gets_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="-o FILE"):
        shown(monkeypatch, b"PAR1", text=False)
