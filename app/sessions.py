"""Stored state of sign-ins: the key that signs session cookies, and the sessions that were ended early."""

import os
import secrets
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, delete
from sqlmodel import Field, SQLModel, col

from app.clock import now
from app.db import UtcDateTime, put, read_session, write_session

KEY_FILE: Final = "session.key"


class EndedSession(SQLModel, table=True):
    """A session that was signed out: no copy of its cookie is accepted any more."""

    __tablename__ = "ended_session"

    id: str = Field(primary_key=True)
    """The random text in its cookie."""
    until: datetime = Field(sa_type=UtcDateTime)
    """After this the cookie has expired, and the row may be removed."""


def end_session(engine: Engine, session_id: str, lifetime: timedelta) -> None:
    """Record that a session has ended, for as long as its cookie could be valid; repeating it changes nothing."""
    with write_session(engine) as session:
        session.execute(delete(EndedSession).where(col(EndedSession.until) < now()))
        put(session, EndedSession(id=session_id, until=now() + lifetime))


def has_ended(engine: Engine, session_id: str) -> bool:
    """Return whether a session was signed out."""
    with read_session(engine) as session:
        return session.get(EndedSession, session_id) is not None


def session_key(data_dir: Path) -> str:
    """Return this installation's secret, made on first use and readable by its owner alone."""
    path = data_dir / KEY_FILE
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{KEY_FILE}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            handle.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # another process was first: its key is used
            os.link(aside, path)
        aside.unlink()
    return path.read_text()


def forget_key(data_dir: Path) -> None:
    """End every session: the next start creates a new key. For a database that lacks the newest sign-outs."""
    (data_dir / KEY_FILE).unlink(missing_ok=True)
