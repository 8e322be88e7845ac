"""Labels of a run that people can edit after it was recorded: name, tags, notes and pin."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from sqlalchemy import Engine, delete
from sqlmodel import Session, col

from app.clock import now
from app.db import write_session
from app.runs.errors import refusal_of, refused
from app.runs.models import AuditEntry, Run, RunTag
from app.runs.requests import Name
from app.runs.store import get_run, tags_of
from app.runs.tags import MAX_TAGS, Tags
from app.runs.texts import lines_of_text

NOTES_LENGTH: Final = 20_000


class Changes(BaseModel):
    """Changes to the labels of a run: absent fields change nothing, and null is not accepted.

    Labels can change in any state, and none of them affects what the run measured. The limits are those of a launch.
    """

    # Every default comes from a factory: the description of the API must not state a default that is never applied.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Name = Field(default_factory=str, description="At most 200 characters; an empty name removes it.")
    tags: Tags = Field(default_factory=list, description="Replaces all tags of the run; excludes the next two.")
    add_tags: Tags = Field(default_factory=list, description="Tags to add.")
    remove_tags: Tags = Field(
        default_factory=list, description="Tags to remove; tags that the run does not have are ignored."
    )
    notes: Annotated[str, Field(max_length=NOTES_LENGTH), AfterValidator(lines_of_text)] = Field(
        default_factory=str, description="Plain text, may have several lines."
    )
    pinned: bool = Field(default_factory=bool, description="A pinned run is never removed by the retention policy.")

    @model_validator(mode="after")
    def _one_way_for_tags(self) -> Self:
        if "tags" in self.model_fields_set and self.model_fields_set & {"add_tags", "remove_tags"}:
            raise ValueError("give either tags (all of them) or add_tags and remove_tags (the difference)")
        if both := sorted(set(self.add_tags) & set(self.remove_tags)):
            raise ValueError(f"the same tag cannot be added and removed: {', '.join(both)}")
        return self


def read_changes(values: Mapping[str, Any]) -> Changes:
    """Return validated changes; absent keys change nothing. Raises Refused naming every invalid field."""
    try:
        return Changes.model_validate(dict(values))
    except ValidationError as error:
        raise refusal_of(error, "invalid_labels", otherwise="tags") from None


def edit_run(engine: Engine, run_id: int, wanted: Changes, *, actor: str) -> list[str]:
    """Change labels of a run, in any state, and return which of name, tags, notes and pinned have changed.

    Actual changes are recorded in the audit log, in the same transaction; a request that changes nothing leaves no
    entry. Raises NotFound, also while the run is being deleted; Refused if the run would have too many tags.
    """
    with write_session(engine) as session:
        run = get_run(session, run_id, hold=True)
        told = [*_edit_name(run, wanted), *_edit_tags(session, run_id, wanted), *_edit_rest(run, wanted)]
        if told:
            session.add(run)
            detail = "; ".join(f"{item.field} {item.text}" for item in told)
            session.add(AuditEntry(at=now(), actor=actor, action="edit", run_id=run_id, detail=detail))
    return [item.field for item in told]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """One changed label, with its description for the audit log."""

    field: str
    text: str


def _edit_name(run: Run, wanted: Changes) -> list[_Told]:
    if "name" not in wanted.model_fields_set or wanted.name == run.name:
        return []
    told = _Told(field="name", text=f"{run.name!r} to {wanted.name!r}")
    run.name = wanted.name
    return [told]


def _edit_tags(session: Session, run_id: int, wanted: Changes) -> list[_Told]:
    before = set(tags_of(session, [run_id]).get(run_id, []))
    after = set(wanted.tags) if "tags" in wanted.model_fields_set else before
    after = (after | set(wanted.add_tags)) - set(wanted.remove_tags)
    if len(after) > MAX_TAGS and after - before:
        raise refused("add_tags", f"run {run_id} would have {len(after)} tags, at most {MAX_TAGS}; remove some first")
    added, removed = sorted(after - before), sorted(before - after)
    if not added and not removed:
        return []
    session.execute(delete(RunTag).where(col(RunTag.run_id) == run_id, col(RunTag.tag).in_(removed)))
    session.add_all(RunTag(run_id=run_id, tag=tag) for tag in added)
    signed = [f"+{tag!r}" for tag in added] + [f"-{tag!r}" for tag in removed]
    return [_Told(field="tags", text=" ".join(signed))]


def _edit_rest(run: Run, wanted: Changes) -> list[_Told]:
    told = []
    if "notes" in wanted.model_fields_set and wanted.notes != run.notes:
        told.append(_Told(field="notes", text=f"from {len(run.notes)} to {len(wanted.notes)} characters"))
        run.notes = wanted.notes
    if "pinned" in wanted.model_fields_set and wanted.pinned != run.pinned:
        told.append(_Told(field="pinned", text="yes" if wanted.pinned else "no"))
        run.pinned = wanted.pinned
    return told
