"""Bringing in what a program traced elsewhere left: from a folder here, or from an archive that was sent."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from app.runs.errors import refused
from app.runs.requests import read_request
from app.runs.service import Service
from app.tracing.folders import NotATrace, Taken, incoming, take_archive, take_folder
from trainer.contract.kinds import KindSpec, tracing_kind

PREPARED: Final = frozenset({"windows", "unit", "fail_on", "allow", "expect", "command"})
"""Parameters taken from a prepared folder; those of the request override them."""
Take = Callable[[Path, Path], tuple[Taken, dict[str, Any]]]


def import_folder(service: Service, folder: Path, body: Mapping[str, Any], *, actor: str) -> int:
    """Record a run of the records in a folder and return its number. `body` is a run request without its kind.

    Raises Refused, OSError; then nothing was recorded.
    """
    return _import(service, take_folder, folder, body, actor)


def import_archive(service: Service, archive: Path, body: Mapping[str, Any], *, actor: str) -> int:
    """Record a run of what an archive holds, in the same way."""
    return _import(service, take_archive, archive, body, actor)


def _import(service: Service, take: Take, source: Path, body: Mapping[str, Any], actor: str) -> int:
    spec = _kind()
    with incoming(service.settings.runs_dir) as folder:
        records = folder / "records"
        records.mkdir()
        try:
            _, prepared = take(source, records)
        except NotATrace as error:
            raise refused("import", str(error), "not_a_trace") from None
        known = {name: value for name, value in prepared.items() if name in PREPARED}
        params = {**known, **body.get("params", {}), "imported": True}
        request = read_request({**body, "kind": spec.name, "params": params})
        return service.submit_records(request, records, actor=actor)


def _kind() -> KindSpec:
    spec = tracing_kind()
    if spec is None:
        raise refused("import", "this installation has no kind that traces", "unknown_kind")
    return spec
