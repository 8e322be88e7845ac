"""Access control: two tokens, two roles, and the paths that require neither."""

import hashlib
import hmac
from enum import StrEnum
from typing import Final

from pydantic import SecretStr
from starlette.requests import Request

from app.settings import Settings
from app.web.http.problems import Problem, route_path
from app.web.security.guesses import Guesses
from app.web.security.hosts import SAFE_METHODS
from app.web.security.sessions import COOKIE, Sessions

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/version", "/login", "/logout", "/favicon.ico"})
OPEN_FOLDER: Final = "/static/"
BEARER: Final = {"WWW-Authenticate": 'Bearer realm="ddp-audit"'}


class Role(StrEnum):
    """Role of a client."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class Access:
    """Authorises every request by the configured tokens; without an operator token every client is the operator."""

    def __init__(self, settings: Settings, sessions: Sessions) -> None:
        self._sessions = sessions
        # Separate from those of the login: a script with an old token must not keep a person from signing in.
        self._guesses = Guesses()
        self._protected = settings.token is not None
        self._public_read = settings.public_read
        self._tokens = {
            role: _digest(token.get_secret_value().encode())
            for role, token in ((Role.OPERATOR, settings.token), (Role.VIEWER, settings.viewer_token))
            if isinstance(token, SecretStr)
        }

    @property
    def protected(self) -> bool:
        """Whether there is an operator token."""
        return self._protected

    @property
    def unknown(self) -> Role:
        """Role of clients without a token, if they are admitted."""
        return Role.VIEWER if self._protected else Role.OPERATOR

    def role_of_token(self, token: bytes) -> Role | None:
        """Return the role of a token; every token is compared in full, even after a match."""
        given = _digest(token)
        matches = [role for role, digest in self._tokens.items() if hmac.compare_digest(given, digest)]
        return matches[0] if matches else None

    def asks_database(self, request: Request) -> bool:
        """Return whether `admit` has to look up a session."""
        return self._protected and not is_open(request) and COOKIE in request.cookies

    def admit(self, request: Request) -> Role | None:
        """Return the client's role, None for the public.

        A wrong token is refused even if none is required: its owner expects a role.
        Raises Problem: 401 without a role, 403 for a viewer's write, 429 for more wrong tokens than `Guesses` allows.
        """
        if is_open(request):
            return None
        role = self._role(request)
        if is_read(request):
            if role is None and not self._public_read:
                raise _unknown("reading requires a token: DDP_AUDIT_TOKEN or DDP_AUDIT_VIEWER_TOKEN of this service")
            return role
        if role is None:
            raise _unknown("writing requires the operator's token: DDP_AUDIT_TOKEN of this service")
        if role is not Role.OPERATOR:
            raise Problem(403, "read_only", "the viewer's token is read-only; writing requires DDP_AUDIT_TOKEN")
        return role

    def _role(self, request: Request) -> Role | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._tokens:
            role = self.role_of_token(token.strip().encode("latin-1"))  # as in the header
            if role is None:  # only now: a client with a valid token is not blocked by others at the same address
                self._guesses.refuse(request)
                raise _unknown("the token is neither the operator's nor the viewer's")
            return role
        session = self._sessions.read(request)
        if session is not None and session.role in {Role.VIEWER, Role.OPERATOR}:
            request.state.session = session.id
            return Role(session.role)
        return None if self._protected else Role.OPERATOR


def is_open(request: Request) -> bool:
    """Return whether a path never requires a token."""
    path = route_path(request.scope)
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def is_read(request: Request) -> bool:
    """Return whether a request changes nothing; classifying an image counts as a read."""
    path = route_path(request.scope)
    return request.method in SAFE_METHODS or path == "/classify" or is_predict(path)


def is_predict(path: str) -> bool:
    """Return whether a path classifies an image."""
    return path == "/api/v1/predict" or (path.startswith("/api/v1/runs/") and path.endswith("/predict"))


def _digest(token: bytes) -> bytes:
    # Digests have a fixed length, so the time of a comparison reveals nothing about the token's length.
    return hashlib.sha256(token).digest()


def _unknown(detail: str) -> Problem:
    return Problem(401, "unauthorised", detail, headers=BEARER)
