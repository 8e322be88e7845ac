"""A run's result as one self-contained HTML file: no server, no network, no scripts."""

import base64
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from app.clock import now, rfc3339
from app.db import Session
from app.places import STATIC
from app.runs.documents import RunDocument
from app.runs.errors import Conflict, NotFound
from app.runs.results.artifacts import artifact_path, media_type
from app.runs.states import State
from app.runs.store import get_run_document
from app.web.charts.metrics import metric_charts
from app.web.views.rendering import environment
from app.web.views.run import run_context

STYLES: Final = ("css/base.css", "css/parts.css", "css/run.css")
PICTURE_BYTES: Final = 2 * 1024 * 1024
ALL_PICTURES_BYTES: Final = 16 * 1024 * 1024
MISSING: Final = "data:,"


class Pictures:
    """Replaces URLs of a run's pictures by the pictures themselves, up to a size."""

    def __init__(self, runs_dir: Path, run_id: int) -> None:
        self._runs_dir, self._run_id = runs_dir, run_id
        self._left = ALL_PICTURES_BYTES
        self.left_out = 0

    def __call__(self, suffix: str) -> str:
        """Return a data URL for a URL of the API; anything other than a picture of this run is left out."""
        name = unquote(suffix.removeprefix(f"/runs/{self._run_id}/artifacts/"))
        try:
            path = artifact_path(self._runs_dir, self._run_id, name)
        except NotFound:
            return MISSING
        size, kind = path.stat().st_size, media_type(path)
        if not kind.startswith("image/") or size > min(PICTURE_BYTES, self._left):
            self.left_out += 1
            return MISSING
        self._left -= size
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def shareable_run(session: Session, run_id: int) -> RunDocument:
    """Return a run that has ended. Raises NotFound, Conflict while it has not ended."""
    run = get_run_document(session, run_id)
    if not State(run.state).is_final:
        raise Conflict("not_final", f"run {run_id} is {run.state}; its result can be shared when it has ended")
    return run


def result_page(session: Session, runs_dir: Path, run: RunDocument) -> str:
    """Return the file for a run that has ended."""
    pictures = Pictures(runs_dir, run.id)
    context: dict[str, Any] = {
        **run_context(runs_dir, run),
        "metrics": metric_charts(session, run.id),
        "api": pictures,
        "scripted": False,
        "css": styles(),
        "version": version("ddp-audit"),
        "written_at": rfc3339(now()),
        "left_out": 0,
    }
    template = environment().get_template("sharing/result.html")
    text = template.render(context)
    if pictures.left_out:  # known only now
        context |= {"left_out": pictures.left_out, "api": Pictures(runs_dir, run.id)}
        text = template.render(context)
    return text


def styles() -> str:
    """Return the pages' styles as one text. Raises RuntimeError for a style that could leave its element."""
    text = "\n".join((STATIC / name).read_text() for name in STYLES)
    if "</style" in text.lower() or re.search(r"@import|url\(\s*['\"]?(?!data:)", text):
        raise RuntimeError("a style sheet refers to another file: the shared page would not be self-contained")
    return text
