"""JSON answers, and what every API route takes from its application."""

import hashlib
from collections.abc import Callable, Iterator
from threading import BoundedSemaphore
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import Response, StreamingResponse

from app.db import Engine, Session, own_session, read_session
from app.documents import to_json
from app.runs.service import Service
from app.settings import Settings
from app.web.http.head import headers_alone
from app.web.http.problems import Problem
from app.web.security.access import Role


def _session(request: Request) -> Iterator[Session]:
    with read_session(request.app.state.engine) as session:
        yield session


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def service_of(request: Request) -> Service:
    """Return the actions of the user."""
    return Service(engine=request.app.state.engine, settings=request.app.state.settings)


def _actor(request: Request) -> str:
    # The gate sets the actor; without a gate the caller is this machine's user.
    return str(getattr(request.state, "actor", "user"))


def _operator_only(request: Request) -> None:
    # Without a gate the caller is this machine's user, as for the actor.
    if getattr(request.state, "role", Role.OPERATOR) != Role.OPERATOR:
        raise Problem(403, "operator_only", "this needs the operator's token, DDP_AUDIT_TOKEN of this service")


def _one_of_few(request: Request) -> Iterator[None]:
    few: BoundedSemaphore = request.app.state.few
    if not few.acquire(blocking=False):
        detail = "two requests that read whole runs are active, which is the limit of this service; try again later"
        raise Problem(429, "busy", detail, headers={"Retry-After": "5"})
    try:
        yield
    finally:
        few.release()


OneOfFew = Depends(_one_of_few, scope="function")
"""For requests that read every byte of a run, or start a process: more of them at once would starve all others."""
OperatorOnly = Depends(_operator_only)
# It ends with the function, not with the answer: a slow reader of a file must not hold a connection of the pool.
ReadSession = Annotated[Session, Depends(_session, scope="function")]
AppSettings = Annotated[Settings, Depends(_settings)]
Verbs = Annotated[Service, Depends(service_of)]
Actor = Annotated[str, Depends(_actor)]


def cached_reply(request: Request, document: Any) -> Response:
    """Return a document, or any JSON value, with an ETag; 304 if the client already has it."""
    body = to_json(document)
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    known = {part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")}
    if tag in known:
        return Response(None, 304, {"ETag": tag})
    return Response(body, 200, {"ETag": tag}, "application/json")


def streamed(
    request: Request, pieces: Callable[[Session], Iterator[bytes]], media_type: str, filename: str
) -> StreamingResponse:
    """Return a download generated piece by piece; errors of `pieces` and of its first piece are raised here.

    It uses its own database connection outside the pool, because it may be read slowly. For HEAD no piece is generated.
    """
    engine: Engine = request.app.state.engine
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    if headers_alone(request):
        with read_session(engine) as session:
            pieces(session)
        return StreamingResponse(iter(()), media_type=media_type, headers=headers)

    def generate() -> Iterator[bytes]:
        with own_session(engine) as session:
            yield from pieces(session)

    pipe = generate()
    first = next(pipe, b"")

    def whole() -> Iterator[bytes]:
        yield first
        yield from pipe

    return StreamingResponse(whole(), media_type=media_type, headers=headers)
