"""What is kept of signing in: the key that signs session cookies, and the sessions that ended before their time."""

import os
import secrets
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, delete
from sqlmodel import Field, SQLModel, col

from app.clock import now
from app.db import UtcDateTime, read_session, write_session

KEY_FILE: Final = "session.key"


class EndedSession(SQLModel, table=True):
    """A session that somebody signed out of: no copy of its cookie lets anybody in any more."""

    __tablename__ = "ended_session"

    id: str = Field(primary_key=True)
    """The random text in its cookie."""
    until: datetime = Field(sa_type=UtcDateTime)
    """From then on the cookie is too old by itself, and the row may go."""


def end_session(engine: Engine, session_id: str, lifetime: timedelta) -> None:
    """Record that a session has ended, for as long as a cookie of it could be valid; doing it twice changes nothing."""
    with write_session(engine) as session:
        session.execute(delete(EndedSession).where(col(EndedSession.until) < now()))
        session.merge(EndedSession(id=session_id, until=now() + lifetime))


def has_ended(engine: Engine, session_id: str) -> bool:
    """Return whether somebody signed out of a session."""
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
        with suppress(FileExistsError):  # another process was first: its key counts
            os.link(aside, path)
        aside.unlink()
    return path.read_text()


def forget_key(data_dir: Path) -> None:
    """End every session: the next start makes another key. For a database that does not know who signed out of what."""
    (data_dir / KEY_FILE).unlink(missing_ok=True)
