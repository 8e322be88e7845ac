"""`/launch`: the form to start a run, built from the kind's schema; presets first, all parameters collapsed."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.datastructures import FormData

from app.db import read_session
from app.runs.documents import RunDocument
from app.runs.errors import Refused
from app.runs.kinds import KindDocument, kind_documents
from app.runs.requests import read_request
from app.runs.store import get_run_document
from app.runs.tags import tags_from_text, text_from_tags
from app.runs.targets import catalogue
from app.settings import SLURM
from app.web.api.replies import service_of
from app.web.forms.cluster import LAUNCH, cluster_fields, launch_options
from app.web.forms.fields import form_fields, plain, typed
from app.web.views import rendering
from app.web.views.rendering import see
from trainer.contract.kinds import default_kind, ordered
from trainer.contract.targets import CATALOGUE, CHOICES, TargetEntry

router = APIRouter(include_in_schema=False)
PARAM: Final = "param."
"""Prefix of parameter fields, so that a parameter called `name` or `tags` cannot collide."""


def _kind(name: str) -> KindDocument:
    documents = {document.name: document for document in kind_documents()}
    return documents.get(name) or documents[default_kind().name]


def _cards() -> list[KindDocument]:
    documents = {document.name: document for document in kind_documents()}
    return [documents[spec.name] for spec in ordered()]


def _targets(request: Request, kind: KindDocument) -> Sequence[TargetEntry]:
    """Return the registered targets if a parameter of this kind names one; may wait until they are listed."""
    wanted = any(prop.get(CHOICES) == CATALOGUE for prop in kind.params_schema["properties"].values())
    return catalogue(request.app.state.settings).entries() if wanted else ()


def _context(
    request: Request, kind: KindDocument, preset: str, entered: Mapping[str, str], errors: dict[str, str]
) -> dict[str, Any]:
    scripts = list(request.app.state.settings.scripts) if kind.traces else []
    chosen = preset if preset in kind.presets else next(iter(kind.presets))
    params = {name.removeprefix(PARAM): text for name, text in entered.items() if name.startswith(PARAM)}
    targets = _targets(request, kind)
    choices = {"script": scripts, CATALOGUE: [entry.name for entry in targets if not entry.problem]}
    fields = form_fields(kind.params_schema, kind.presets[chosen], params, errors, choices)
    settings = request.app.state.settings
    cluster = cluster_fields(settings, entered, errors) if settings.executor == SLURM and not kind.traces else []
    known = {field.name for field in fields} | {field.name for field in cluster} | {"name", "tags"}
    return {
        "nav": "launch",
        "kinds": _cards(),
        "kind": kind,
        "scripts": scripts,
        "preset": chosen,
        "fields": fields,
        "cluster": cluster,
        "cluster_open": any(field.entered or field.error for field in cluster),
        "entered": entered,
        "errors": errors,
        "other_errors": {name: text for name, text in errors.items() if name not in known},
        "targets": targets,
        "open": bool(scripts or targets) or any(params.values()) or any(field.error for field in fields),
    }


@router.get("/launch", name="launch_page")
def show(
    request: Request,
    kind: Annotated[str, Query(max_length=64)] = "",
    preset: Annotated[str, Query(max_length=64)] = "quick",
    like: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    """Show the form of one kind and preset, or filled in like run `like`; typed values are in the URL."""
    entered = {name: text for name, text in request.query_params.items() if name not in ("kind", "preset", "like")}
    if like is not None:
        with read_session(request.app.state.engine) as session:
            run = get_run_document(session, like)
        kind, preset, entered = run.kind, run.preset or preset, as_launched(_kind(run.kind), run)
    context = _context(request, _kind(kind), preset, entered, {})
    return rendering.page(request, "pages/launch/show.html", like=like, **context)


def as_launched(kind: KindDocument, run: RunDocument) -> dict[str, str]:
    """Return the form values, besides the preset, that launch `run` again."""
    usual = kind.presets.get(run.preset or "", {})
    changed = {name: value for name, value in run.params.items() if name not in usual or usual[name] != value}
    params = {f"{PARAM}{name}": plain(value) for name, value in changed.items()}
    launch = {f"{LAUNCH}{name}": plain(value) for name, value in run.launch.items()}
    return {**params, **launch, "name": run.name, "tags": text_from_tags(run.tags)}


@router.post("/launch", name="launch")
async def launch(request: Request) -> Response:
    """Start the run, or show the form again with each error next to its field and all typed values."""
    async with request.form(max_files=0, max_fields=200) as form:
        entered = _texts(form)
    return await _launch(request, entered)


def _texts(form: FormData) -> dict[str, str]:
    return {name: value for name, value in form.items() if isinstance(value, str)}


async def _launch(request: Request, entered: dict[str, str]) -> Response:
    from anyio import to_thread

    kind = _kind(entered.get("kind", ""))
    params = {name.removeprefix(PARAM): text for name, text in entered.items() if name.startswith(PARAM)}
    try:
        wanted = read_request(
            {
                "kind": entered.get("kind") or kind.name,
                "preset": entered.get("preset") or None,
                "params": typed(kind.params_schema, params),
                "launch": launch_options(entered),
                "name": entered.get("name", ""),
                "tags": tags_from_text(entered.get("tags", "")),
            }
        )
        run_id = await to_thread.run_sync(lambda: service_of(request).submit(wanted, actor=rendering.actor(request)))
    except Refused as refusal:
        errors = {item.field: item.message for item in refusal.errors} or {"": refusal.detail}
    else:
        return see(request, "run_page", run_id=run_id)
    preset = entered.get("preset", "")
    context = await to_thread.run_sync(lambda: _context(request, kind, preset, entered, errors))
    return rendering.page(request, "pages/launch/show.html", 422, like=None, **context)
