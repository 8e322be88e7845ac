"""The session cookie of a signed-in person: signed, bound to the tokens, not readable by scripts, revocable."""

import hashlib
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from app.db import Engine
from app.sessions import end_session, has_ended, session_key
from app.settings import Settings

COOKIE: Final = "ddp_audit_session"
LIFETIME: Final = timedelta(days=7)
SECONDS: Final = int(LIFETIME.total_seconds())
LOOK_AGAIN_SECONDS: Final = 5.0
"""Seconds between checks whether the session of a running answer is still valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Content of a session cookie."""

    id: str
    """Random, new at every sign-in."""
    role: str


class Sessions:
    """Issues, reads and revokes session cookies; changing a token ends every session."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings, self._engine = settings, engine
        self._serializer: URLSafeTimedSerializer | None = None

    def _signer(self) -> URLSafeTimedSerializer:
        if self._serializer is None:
            tokens = (self._settings.token, self._settings.viewer_token)
            texts = [token.get_secret_value() if token else "" for token in tokens]
            bound = hashlib.sha256("\0".join([session_key(self._settings.data_dir), *texts]).encode()).hexdigest()
            self._serializer = URLSafeTimedSerializer(bound, salt="ddp-audit session")
        return self._serializer

    def signed(self, request: Request) -> Signed | None:
        """Return the content of the request's cookie, None without one signed by this service. Makes no query."""
        cookie = request.cookies.get(COOKIE)
        if cookie is None or self._settings.token is None:
            return None
        try:
            match self._signer().loads(cookie, max_age=SECONDS):
                case [str(session_id), str(role)]:
                    return Signed(id=session_id, role=role)
        except BadData:
            pass
        return None

    def read(self, request: Request) -> Signed | None:
        """Return the session of a request, None if nobody is signed in or the session was signed out.

        Queries the database.
        """
        found = self.signed(request)
        return None if found is None or has_ended(self._engine, found.id) else found

    def give(self, request: Request, response: Response, role: str) -> None:
        """Set a new session in a response and end the request's session. Writes to the database."""
        self._end(request)
        response.set_cookie(
            COOKIE,
            str(self._signer().dumps([secrets.token_hex(16), role])),
            max_age=SECONDS,
            path=self._settings.root_path or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )

    def end(self, request: Request, response: Response) -> None:
        """End the session of a request, in every copy of its cookie. Writes to the database."""
        self._end(request)
        response.delete_cookie(COOKIE, path=self._settings.root_path or "/", httponly=True, samesite="lax")

    def _end(self, request: Request) -> None:
        found = self.signed(request)
        if found is not None:
            end_session(self._engine, found.id, LIFETIME)


class Admission:
    """Limits a long-running answer to the lifetime of its session."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._sessions: Sessions = request.app.state.sessions
        # A client that sends a token needs no session.
        self._asks = getattr(request.state, "session", None) is not None
        self._looked_at = time.monotonic()

    async def holds(self) -> bool:
        """Return whether the answer may continue; queries at most every few seconds."""
        if not self._asks or time.monotonic() - self._looked_at < LOOK_AGAIN_SECONDS:
            return True
        holds = await run_in_threadpool(self._sessions.read, self._request) is not None
        self._looked_at = time.monotonic()  # not before: a database that is away has not answered
        return holds
