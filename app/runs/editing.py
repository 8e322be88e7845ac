"""What people write on a run after it was recorded: its name, tags, notes and pin."""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Engine, delete
from sqlmodel import col

from app.clock import now
from app.db import write_session
from app.runs.errors import FieldError, Refused
from app.runs.models import AuditEntry, RunTag
from app.runs.requests import Tag, plain_text
from app.runs.store import get_run

NOTES_LENGTH: Final = 20_000


class Labels(BaseModel):
    """The labels of a run; none of them changes what the run measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(max_length=200), AfterValidator(plain_text)] = ""
    tags: list[Tag] = Field(default_factory=list, max_length=20)
    notes: str = Field("", max_length=NOTES_LENGTH)
    pinned: bool = False


def labels(**values: Any) -> Labels:
    """Return checked labels. Raises Refused naming every field that cannot be stored."""
    try:
        return Labels.model_validate(values)
    except ValidationError as error:
        errors = [
            FieldError(field=str(item["loc"][0]), message=str(item["msg"]).removeprefix("Value error, "))
            for item in error.errors()
        ]
        raise Refused("invalid_labels", "; ".join(f"{item.field}: {item.message}" for item in errors), errors) from None


def edit_run(engine: Engine, run_id: int, wanted: Labels, *, actor: str) -> None:
    """Replace the labels of a run, in any state. Raises NotFound."""
    with write_session(engine) as session:
        run = get_run(session, run_id)
        run.name, run.notes, run.pinned = wanted.name, wanted.notes.replace("\r\n", "\n"), wanted.pinned
        session.add(run)
        session.execute(delete(RunTag).where(col(RunTag.run_id) == run_id))
        session.add_all(RunTag(run_id=run_id, tag=tag) for tag in sorted(set(wanted.tags)))
        session.add(AuditEntry(at=now(), actor=actor, action="edit", run_id=run_id, detail=f"name {wanted.name!r}"))
