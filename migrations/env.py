"""Alembic's environment; always called from `app.schema`, which passes an open connection."""

from alembic import context
from sqlmodel import SQLModel

import app.runs.derived
import app.runs.models
import app.sessions

REGISTERED = (app.runs.models, app.runs.derived, app.sessions)

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
