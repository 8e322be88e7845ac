"""Records of programs that were traced elsewhere, sent as one archive."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.db import read_session
from app.runs.documents import RunDocument
from app.runs.store import get_run_document
from app.runs.tags import Tags
from app.tracing.folders import incoming
from app.tracing.intake import import_archive
from app.web.api.answers import answers
from app.web.api.replies import Actor, OneOfFew, Verbs
from app.web.http.problems import Problem

router = APIRouter(prefix="/traces", tags=["runs"])
ARCHIVE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", status_code=201, responses=answers(403, 413), openapi_extra=ARCHIVE, dependencies=[OneOfFew])
async def receive(
    *,
    request: Request,
    response: Response,
    verbs: Verbs,
    actor: Actor,
    name: Annotated[str, Query(max_length=200)] = "",
    tag: Annotated[Tags | None, Query()] = None,
) -> RunDocument:
    """Record a run of what `ddp-audit trace --prepare` made a program write elsewhere; the body is a zip archive.

    `ddp-audit trace --import DIR` sends it. It contains `records/rank<r>.trace`, the other files of the ranks, and
    `trace.json` with the parameters of the judgement.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/zip":
        raise Problem(422, "invalid", f"Content-Type: send the archive as application/zip, not as {kind[:80]!r}")
    body = {"name": name, "tags": tag or []}
    with incoming(verbs.settings.runs_dir) as folder:
        archive = folder / "archive.zip"
        await _store(request, archive)
        run_id = await asyncio.to_thread(import_archive, verbs, archive, body, actor=actor)
    response.headers["Location"] = f"{request.url.path.rsplit('/', 1)[0]}/runs/{run_id}"
    with read_session(verbs.engine) as session:
        return get_run_document(session, run_id)


async def _store(request: Request, archive: Path) -> None:
    with archive.open("xb") as file:
        async for piece in request.stream():
            await asyncio.to_thread(file.write, piece)
