"""Which model answers: of one run, or of the newest passing run of kind `cifar`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from anyio import to_thread
from sqlalchemy import Engine, bindparam, select
from sqlalchemy.pool import PoolProxiedConnection

from app.inference.errors import ModelRefused
from app.runs.models import Run
from app.runs.states import State
from trainer.contract.paths import RunPaths

KIND: Final = "cifar"
ANSWERING_MODE: Final = {"both": "no_sync"}
"""Mode whose model answers, where a run trains several."""
LOOKED_AT: Final = 20
"""Newest passing runs whose model file is looked for."""
MAX_RUN_ID: Final = 2**63 - 1
"""More does not fit the column, and the database driver answers it with an exception."""
_run: Any = Run
# Built once: putting a query together costs as much as running it.
NEWEST_PASSING: Final = (
    select(_run.id, _run.params)
    .where(_run.kind == KIND, _run.state == State.SUCCEEDED, _run.verdict == "pass", _run.deleting.is_(False))
    .order_by(_run.id.desc())
    .limit(LOOKED_AT)
)
BY_ID: Final = select(_run.kind, _run.state, _run.params).where(
    _run.id == bindparam("run_id"), _run.deleting.is_(False)
)
HOW_TO_TRAIN: Final = "train one with `ddp-audit run cifar`, or launch the kind cifar on the page /launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    """A model file and the run it belongs to."""

    run_id: int
    path: Path


class Chooser:
    """Chooses models and remembers the choices for as long as nobody writes to the database.

    SQLite tells that much faster than it answers a query, and without a detour through a thread.
    """

    def __init__(self, engine: Engine, runs_dir: Path) -> None:
        self._engine, self._runs_dir = engine, runs_dir
        self._watch: PoolProxiedConnection | None = None
        self._version: int | None = None
        self._chosen: dict[int | None, ChosenModel] = {}

    async def choose(self, run_id: int | None) -> ChosenModel:
        """Return the model of one run, or with None the newest passing one. Raises ModelRefused."""
        version = self._data_version()
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
        """Give the connection back."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _query(self, run_id: int | None) -> ChosenModel:
        if run_id is None:
            return newest_model(self._engine, self._runs_dir)
        return model_of_run(self._engine, self._runs_dir, run_id)

    def _data_version(self) -> int | None:
        """Return a number that changes with every commit of anyone else; None where the database has none."""
        if self._engine.dialect.name != "sqlite":
            return None
        if self._watch is None:
            self._watch = self._engine.raw_connection()
        cursor = self._watch.cursor()
        try:
            return int(cursor.execute("PRAGMA data_version").fetchone()[0])
        finally:
            cursor.close()


def newest_model(engine: Engine, runs_dir: Path) -> ChosenModel:
    """Return the model of the newest succeeded cifar run with verdict pass. Raises ModelRefused (404) without one."""
    with engine.connect() as connection:
        for run_id, params in connection.execute(NEWEST_PASSING):
            path = model_path(runs_dir, run_id, params)
            if path.is_file():
                return ChosenModel(run_id=run_id, path=path)
    raise _refused("no_model", f"no cifar run has passed yet, so there is no model to answer with; {HOW_TO_TRAIN}")


def model_of_run(engine: Engine, runs_dir: Path, run_id: int) -> ChosenModel:
    """Return the model of one run.

    Raises ModelRefused with 404: unknown run, one of another kind, unfinished, or without a model. The verdict is not
    asked for: who names a run wants that run.
    """
    if not 0 < run_id <= MAX_RUN_ID:
        raise _refused("run_not_found", f"there is no run {run_id}")
    with engine.connect() as connection:
        row = connection.execute(BY_ID, {"run_id": run_id}).one_or_none()
    if row is None:
        raise _refused("run_not_found", f"there is no run {run_id}")
    kind, state, params = row
    if kind != KIND:
        text = f"run {run_id} is of kind {kind}, which trains no image classifier; {HOW_TO_TRAIN}"
        raise _refused("run_has_no_model", text)
    path = model_path(runs_dir, run_id, params)
    if state != State.SUCCEEDED:
        text = f"run {run_id} is {state}; only a succeeded run answers. Wait for it, or {HOW_TO_TRAIN}"
        raise _refused("run_has_no_model", text)
    if not path.is_file():
        text = f"run {run_id} has no model any more ({path.relative_to(runs_dir)} is missing); {HOW_TO_TRAIN}"
        raise _refused("run_has_no_model", text)
    return ChosenModel(run_id=run_id, path=path)


def model_path(runs_dir: Path, run_id: int, params: dict[str, Any]) -> Path:
    """Return where a cifar run with these parameters keeps the model that answers."""
    mode = str(params.get("mode", "both"))
    return RunPaths(runs_dir / str(run_id)).artifacts / ANSWERING_MODE.get(mode, mode) / "model.pt"


def _refused(code: str, detail: str, status: int = 404) -> ModelRefused:
    return ModelRefused(status=status, code=code, detail=detail)
