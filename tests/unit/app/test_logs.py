"""The log: machine-readable, numbered by request and run, and free of secrets."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message

from app.logs import configure
from app.settings import Settings
from app.web.http.requestlog import RequestLog

TOKEN = "the-operators-token"


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[io.StringIO]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    made = io.StringIO()
    configure(Settings(data_dir=tmp_path, token=TOKEN, viewer_token="abc", log_format="json"), made)
    yield made
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_with_level(stream: io.StringIO) -> None:
    structlog.get_logger("x").warning("careful", action="test", run_id=7)
    line = lines(stream)[0]
    assert (line["event"], line["action"], line["run_id"], line["level"]) == ("careful", "test", 7, "warning")
    assert line["timestamp"].endswith("Z")


def test_secrets_never_reach_the_log(stream: io.StringIO) -> None:
    structlog.get_logger().info(f"given {TOKEN}", header={"a": [f"Bearer {TOKEN}"]}, word="abcdef")
    logging.getLogger("library").error("address http://h/?key=%s", TOKEN)
    try:
        int(TOKEN)
    except ValueError:
        structlog.get_logger().exception("failed")
    assert TOKEN not in stream.getvalue()
    assert stream.getvalue().count("[hidden]") == 4
    assert "abcdef" in stream.getvalue()  # a three-letter token must not garble words


def test_traceback_shows_no_variables(stream: io.StringIO) -> None:
    password = "kept in a local variable"
    try:
        _ = len(password) / 0
    except ZeroDivisionError:
        structlog.get_logger().exception("failed")
    assert "ZeroDivisionError: division by zero" in lines(stream)[0]["exception"]
    assert stream.getvalue().count("kept in a local variable") == 0


def test_libraries_speak_json_too(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("port %d", 80)
    logging.getLogger("httpx").info("HTTP Request: POST http://h/?key=k")
    assert [(line["event"], line["level"]) for line in lines(stream)] == [("port 80", "warning")]


def test_text_format_is_one_line(tmp_path: Path, stream: io.StringIO) -> None:
    other = io.StringIO()
    configure(Settings(data_dir=tmp_path, log_format="text"), other)
    structlog.get_logger().info("two\nlines", action="test")
    assert other.getvalue().count("\n") == 1
    assert "action=test" in other.getvalue()


def test_text_format_obeys_no_terminal(tmp_path: Path, stream: io.StringIO) -> None:
    other = io.StringIO()
    configure(Settings(data_dir=tmp_path, log_format="text"), other)
    structlog.get_logger().info("request", path="/\x1b[2J\x9b2J\x07\u202eüß", action="test")
    assert r"/\u001b[2J\u009b2J\u0007\u202eüß" in other.getvalue()
    assert other.getvalue().removesuffix("\n").isprintable()


async def show(request: Request) -> Response:
    structlog.get_logger().info("inside", action="inside")
    if request.url.path.endswith("9"):
        raise ZeroDivisionError
    return PlainTextResponse("ok")


async def call(path: str, headers: dict[str, str] | None = None) -> list[Message]:
    app = RequestLog(Starlette(routes=[Route("/{path:path}", show)]))
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"token=in-the-query",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 5),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def run_call(path: str, headers: dict[str, str] | None = None) -> str:
    sent = asyncio.run(call(path, headers))
    headers_out: dict[bytes, bytes] = dict(sent[0]["headers"])
    return headers_out[b"x-request-id"].decode()


def test_request_and_run_are_on_every_line(stream: io.StringIO) -> None:
    number = run_call("/api/v1/runs/17/events")
    inside, request = lines(stream)
    assert inside["request_id"] == request["request_id"] == number
    assert inside["run_id"] == request["run_id"] == 17
    assert (request["status"], request["path"], request["client"]) == (200, "/api/v1/runs/17/events", "127.0.0.1")
    assert "in-the-query" not in stream.getvalue()
    run_call("/runs")
    assert "run_id" not in lines(stream)[-1]
    assert lines(stream)[-1]["request_id"] != number


def test_given_number_is_kept_if_harmless(stream: io.StringIO) -> None:
    assert run_call("/runs", {"X-Request-ID": "proxy-1.a_b"}) == "proxy-1.a_b"
    assert run_call("/runs", {"X-Request-ID": 'x" level="error'}) != 'x" level="error'


def test_monitors_are_not_logged(stream: io.StringIO) -> None:
    run_call("/healthz")
    assert [line["event"] for line in lines(stream)] == ["inside"]


def test_request_that_breaks_is_logged(stream: io.StringIO) -> None:
    with pytest.raises(ZeroDivisionError):
        run_call("/runs/9")
    assert lines(stream)[-1]["action"] == "request"
    assert lines(stream)[-1]["status"] in (None, 500)
