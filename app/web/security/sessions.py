"""The session cookie of a person who logged in: signed, bound to the tokens, unreadable for scripts."""

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import Response

from app.settings import Settings

COOKIE: Final = "ddp_audit_session"
SECONDS: Final = 7 * 24 * 3600
KEY_FILE: Final = "session.key"


class Sessions:
    """Gives out and reads session cookies; a changed token ends every session."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._serializer: URLSafeTimedSerializer | None = None

    def _signer(self) -> URLSafeTimedSerializer:
        if self._serializer is None:
            tokens = (self._settings.token, self._settings.viewer_token)
            texts = [token.get_secret_value() if token else "" for token in tokens]
            bound = hashlib.sha256("\0".join([_key(self._settings.data_dir), *texts]).encode()).hexdigest()
            self._serializer = URLSafeTimedSerializer(bound, salt="ddp-audit session")
        return self._serializer

    def read(self, request: Request) -> str | None:
        """Return the role of a valid session, None for any other cookie."""
        cookie = request.cookies.get(COOKIE)
        if cookie is None or self._settings.token is None:
            return None
        try:
            role = self._signer().loads(cookie, max_age=SECONDS)
        except BadData:
            return None
        return role if isinstance(role, str) else None

    def give(self, request: Request, response: Response, role: str) -> None:
        """Put a session into a response."""
        response.set_cookie(
            COOKIE,
            self._signer().dumps(role),
            max_age=SECONDS,
            path=self._settings.root_path or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )

    def end(self, response: Response) -> None:
        """Take the session away."""
        response.delete_cookie(COOKIE, path=self._settings.root_path or "/", httponly=True, samesite="lax")


def _key(data_dir: Path) -> str:
    """Return this installation's secret, made on first use and readable by its owner alone."""
    path = data_dir / KEY_FILE
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{KEY_FILE}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            handle.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # another process was first: its key counts
            os.link(aside, path)
        aside.unlink()
    return path.read_text()
