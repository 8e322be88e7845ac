"""The files that a run offers for download; no path leaves the run's `artifacts/` folder."""

import os
from pathlib import Path
from typing import Final

from pydantic import Field

from app.documents import Document
from app.runs.errors import NotFound
from trainer.contract.paths import RunPaths

MEDIA_TYPES: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".log": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".html": "text/html; charset=utf-8",
}
ACTIVE_TYPES: Final = frozenset({".svg", ".html"})
"""Documents that could run scripts: served only inside a sandbox."""
UNKNOWN_TYPE: Final = "application/octet-stream"


class Artifact(Document):
    """A file that a run offers."""

    path: str
    bytes: int
    media_type: str
    modified: float = Field(description="Unix seconds.")


class ArtifactList(Document):
    """Artifacts by path."""

    items: list[Artifact]


def artifacts(runs_dir: Path, run_id: int) -> ArtifactList:
    """Return every artifact, sorted by path; files whose names are not UTF-8 are left out: no URL can address them."""
    root = RunPaths(runs_dir / str(run_id)).artifacts
    items = []
    for folder, _folders, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if not _is_text(str(path)) or not _inside(path, root) or not path.is_file():
                continue
            status = path.stat()
            place, kind = path.relative_to(root).as_posix(), media_type(path)
            items.append(Artifact(path=place, bytes=status.st_size, media_type=kind, modified=status.st_mtime))
    return ArtifactList(items=sorted(items, key=lambda item: item.path))


def _is_text(name: str) -> bool:
    return os.fsencode(name).decode(errors="ignore") == name


def media_type(path: Path) -> str:
    """Return the content type of a served file; unknown types are downloads."""
    return MEDIA_TYPES.get(path.suffix.lower(), UNKNOWN_TYPE)


def artifact_path(runs_dir: Path, run_id: int, name: str) -> Path:
    """Return the file of an artifact. Raises NotFound if there is none, or if the path leaves the folder."""
    root = RunPaths(runs_dir / str(run_id)).artifacts
    missing = NotFound("unknown_artifact", f"run {run_id} has no artifact {name[:200]!r}")
    if ".." in name.split("/") or name.startswith("/"):
        raise missing
    try:
        path = root / name
        if not _inside(path, root) or not path.is_file():
            raise missing
    except (OSError, ValueError):  # names too long, or with a NUL byte
        raise missing from None
    return path


def _inside(path: Path, root: Path) -> bool:
    # The folder itself must not be a link either: only the run's folder may be behind one.
    return path.resolve().is_relative_to(root.parent.resolve() / root.name)
