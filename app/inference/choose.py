"""Choice of the model: that of one run, or of the newest passing run whose kind trains a classifier."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from anyio import to_thread
from sqlalchemy import Engine, bindparam, select

from app.db import DataVersion
from app.inference.errors import ModelRefused
from app.runs.models import Run
from app.runs.states import State
from trainer.contract.kinds import classifiers
from trainer.contract.paths import RunPaths

LOOKED_AT: Final = 20
"""Maximum number of newest passing runs searched for a model file."""
MAX_RUN_ID: Final = 2**63 - 1
"""Larger numbers do not fit the column, and the database driver raises for them."""
_run: Any = Run
# Built once: building a query costs as much as running it.
NEWEST_PASSING: Final = (
    select(_run.id, _run.kind, _run.params)
    .where(_run.kind.in_(bindparam("kinds", expanding=True)))
    .where(_run.state == State.SUCCEEDED, _run.verdict == "pass", _run.deleting.is_(False))
    .order_by(_run.id.desc())
    .limit(LOOKED_AT)
)
BY_ID: Final = select(_run.kind, _run.state, _run.params).where(
    _run.id == bindparam("run_id"), _run.deleting.is_(False)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    """A model file and the run it belongs to."""

    run_id: int
    kind: str
    path: Path


class Chooser:
    """Chooses models and caches the choices until the database is written to.

    SQLite reports writes much faster than it answers a query, and without a detour through a thread. A database server
    is asked every time.
    """

    def __init__(self, engine: Engine, runs_dir: Path) -> None:
        self._engine, self._runs_dir = engine, runs_dir
        self._data_version = DataVersion(engine)
        self._version: object = None
        self._chosen: dict[int | None, ChosenModel] = {}

    async def choose(self, run_id: int | None) -> ChosenModel:
        """Return the model of one run, or with None the newest passing one. Raises ModelRefused."""
        version = self._data_version.read() if self._data_version.instant else None
        if version is None or version != self._version:
            self._version, self._chosen = version, {}
        known = self._chosen.get(run_id)
        if known is not None and known.path.is_file():
            return known
        chosen = await to_thread.run_sync(self._query, run_id)
        if version is not None and version == self._version:
            self._chosen[run_id] = chosen
        return chosen

    def close(self) -> None:
        """Return the connection."""
        self._data_version.close()

    def _query(self, run_id: int | None) -> ChosenModel:
        if run_id is None:
            return newest_model(self._engine, self._runs_dir)
        return model_of_run(self._engine, self._runs_dir, run_id)


def newest_model(engine: Engine, runs_dir: Path) -> ChosenModel:
    """Return the model of the newest succeeded run with verdict pass. Raises ModelRefused (404) without one."""
    with engine.connect() as connection:
        for run_id, kind, params in connection.execute(NEWEST_PASSING, {"kinds": list(classifiers())}):
            path = model_path(runs_dir, run_id, kind, params)
            if path.is_file():
                return ChosenModel(run_id=run_id, kind=kind, path=path)
    none = f"no {training_kinds()} run has passed yet"
    raise _refused("no_model", f"{none}, so there is no model yet; {how_to_train()}")


def model_of_run(engine: Engine, runs_dir: Path, run_id: int) -> ChosenModel:
    """Return the model of one run.

    Raises ModelRefused with 404: unknown run, one of another kind, unfinished, or without a model. The verdict does not
    matter: a named run is used as requested.
    """
    if not 0 < run_id <= MAX_RUN_ID:
        raise _refused("run_not_found", f"there is no run {run_id}")
    with engine.connect() as connection:
        row = connection.execute(BY_ID, {"run_id": run_id}).one_or_none()
    if row is None:
        raise _refused("run_not_found", f"there is no run {run_id}")
    kind, state, params = row
    if kind not in classifiers():
        text = f"run {run_id} is of kind {kind}, which does not train an image classifier; {how_to_train()}"
        raise _refused("run_has_no_model", text)
    path = model_path(runs_dir, run_id, kind, params)
    if state != State.SUCCEEDED:
        text = f"run {run_id} is {state}; only a succeeded run has a model. Wait for it, or {how_to_train()}"
        raise _refused("run_has_no_model", text)
    if not path.is_file():
        text = f"run {run_id} no longer has a model ({path.relative_to(runs_dir)} is missing); {how_to_train()}"
        raise _refused("run_has_no_model", text)
    return ChosenModel(run_id=run_id, kind=kind, path=path)


def model_path(runs_dir: Path, run_id: int, kind: str, params: Mapping[str, Any]) -> Path:
    """Return the path of the model used for classification, for a kind with a classifier."""
    return RunPaths(runs_dir / str(run_id)).artifacts / classifiers()[kind].model_file(params)


def training_kinds() -> str:
    """Return the kinds whose runs train a classifier, as text."""
    return " or ".join(classifiers())


def how_to_train() -> str:
    """Return what to do if there is no model."""
    commands = " or ".join(f"`ddp-audit run {kind}`" for kind in classifiers())
    return f"train one with {commands}, or launch the kind {training_kinds()} on the page /launch"


def _refused(code: str, detail: str) -> ModelRefused:
    return ModelRefused(status=404, code=code, detail=detail)
