"""Collective saving and loading of checkpoints: every rank its own file, rank 0 the shared one, the manifest last."""

import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.common.checkpoints.content import named_tensors, read_part, write_part
from trainer.common.checkpoints.errors import CheckpointDamaged, CheckpointNotSaved, CheckpointRefused, WindowOpen
from trainer.common.checkpoints.files import flush
from trainer.common.checkpoints.guard import standing_still, update_count
from trainer.common.checkpoints.identity import Identity, check_parameters, optimizer_names, parameter_entries
from trainer.common.checkpoints.ranks import Ranks
from trainer.common.checkpoints.state import TrainingState
from trainer.common.telemetry import Telemetry
from trainer.contract.checkpoints import CheckpointInfo, list_checkpoints, newest_valid
from trainer.contract.files import make_folder
from trainer.contract.manifest import (
    MANIFEST,
    FileEntry,
    Header,
    Manifest,
    ManifestInvalid,
    check_listing,
    check_spelling,
    read_manifest,
    spellings,
    step_directories,
    step_directory,
)
from trainer.contract.stamp import SHARED, file_of, rank_file

ASIDE = ".part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A finished save."""

    path: Path
    step: int
    bytes: int
    digest: str
    seconds: float
    """Wall time of the save on this rank, including waiting for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a load returns besides the restored objects."""

    path: Path
    step: int
    """Updates done when it was saved."""
    sampler: Mapping[str, Any]
    """This rank's sampler history and position, as given to `save`."""


class CheckpointStore:
    """The checkpoints of one trajectory. Every method is collective: all ranks call it and get the same outcome.

    With `keep`, checkpoints older than the newest `keep` are removed after each save, except pinned ones.
    """

    def __init__(
        self,
        root: Path,
        identity: Identity,
        *,
        keep: int | None = None,
        telemetry: Telemetry | None = None,
        run_root: Path | None = None,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep is {keep}; at least the newest checkpoint must be kept")
        self.root, self.identity, self.keep = root, identity, keep
        self._telemetry, self._run_root = telemetry, run_root or root.parent
        self._ranks = Ranks.of_default_group(telemetry)
        self._remover = ThreadPoolExecutor(max_workers=1)
        self._removal: Future[None] | None = None

    def save(
        self,
        step: int,
        state: TrainingState,
        sampler: Mapping[str, Any],
        *,
        pinned: bool = False,
        pending_micro_batches: int = 0,
    ) -> Saved:
        """Save after `step` updates (one optimizer step each); `sampler` is this rank's history and position.

        Raises WindowOpen if gradients of `pending_micro_batches` wait for an optimizer step, CheckpointNotSaved (disk
        full, no permission, state beyond `step` or changed in the meantime, …) equally on all ranks; every earlier
        checkpoint is then unchanged.
        """
        if pending_micro_batches:
            raise WindowOpen(
                f"step {step}: {pending_micro_batches} micro-batches of the window are not applied yet; "
                "save after the optimizer step"
            )
        began = time.perf_counter()
        self._ranks.mark("save", step)
        aside = self._ranks.on_first("checkpoint directory", lambda: self._open_aside(step))
        manifest = self._write(aside, step, state, sampler, pinned)
        path = self._ranks.on_first("checkpoint commit", lambda: self._commit(aside, manifest))
        self._report(step, path)
        return Saved(
            path=path,
            step=step,
            bytes=manifest.total_bytes,
            digest=manifest.digest,
            seconds=time.perf_counter() - began,
        )

    def newest_valid(self) -> tuple[CheckpointInfo | None, list[CheckpointInfo]]:
        """Return the newest valid checkpoint and newer invalid ones with their problems; rank 0 decides for all."""
        return self._ranks.on_first("checkpoint choice", lambda: newest_valid(self.root))

    def load_newest(self, state: TrainingState) -> Restored | None:
        """Continue from the newest valid checkpoint, reporting which newer ones were skipped and why.

        None if nothing was ever saved here. Raises CheckpointDamaged if there are checkpoints but no valid one.
        """
        chosen, skipped = self.newest_valid()
        for info in skipped:
            self._say(f"{info.path.name} is skipped: {info.problem}")
        if chosen is not None:
            return self.load(chosen.path, state)
        if skipped:
            reasons = "; ".join(f"{info.path.name}: {info.problem}" for info in skipped)
            raise CheckpointDamaged(f"no valid checkpoint is left in {self.root.name}: {reasons}")
        update_count(state.optimizer).is_at(0)
        return None

    def load(self, path: Path, state: TrainingState) -> Restored:
        """Fill `state` and this rank's generators from one checkpoint.

        Raises CheckpointRefused with the field that differs, or CheckpointDamaged, equally on all ranks; nothing is
        changed before every rank has read and accepted its files.
        """
        self._ranks.mark("load")
        digests = self._ranks.together("checkpoint manifest", lambda: self._accept(path, state).digest)
        if len(set(digests)) > 1:
            raise CheckpointRefused(f"{path.name}: the ranks do not see the same checkpoint ({digests})", "manifest")
        content: list[tuple[Any, Any]] = []
        self._ranks.together("checkpoint content", lambda: content.append(self._read(path, state)))
        shared, own = content[0]
        self._ranks.together("checkpoint restore", lambda: state.restore(shared, own, path.name))
        step = read_manifest(path).header.step
        update_count(state.optimizer).is_at(step)
        self._say(f"continues from {path.name}")
        return Restored(path=path, step=step, sampler=own["sampler"])

    def listing(self) -> list[CheckpointInfo]:
        """Return every checkpoint with its validity, newest first (checked by rank 0)."""
        return self._ranks.on_first("checkpoint list", lambda: list_checkpoints(self.root))

    def settle(self) -> None:
        """Wait until removed checkpoints are gone from the disk. Raises OSError if they cannot be removed."""
        if self._removal is not None:
            self._removal.result()

    def _open_aside(self, step: int) -> Path:
        make_folder(self.root, within=self._run_root)
        self.settle()
        for stale in self.root.glob(f".step-*{ASIDE}"):  # from a killed save; no other process saves here
            shutil.rmtree(stale)
        aside = self.root / f".{step_directory(self.root, step).name}.{os.getpid()}{ASIDE}"
        aside.mkdir()
        return aside

    def _write(
        self, aside: Path, step: int, state: TrainingState, sampler: Mapping[str, Any], pinned: bool
    ) -> Manifest:
        rank = self._ranks.rank

        def write_own() -> dict[str, FileEntry]:
            written = self._write_own(aside, step, state, sampler)
            flush(*(aside / name for name in written))
            return written

        try:
            parts = self._ranks.together("checkpoint files", write_own)
        except Exception:
            if rank == 0:
                shutil.rmtree(aside, ignore_errors=True)
            raise
        files = {name: entry for part in parts for name, entry in part.items()}
        return Manifest(header=self._header(step, state), files=files, pinned=pinned).sealed()

    def _write_own(
        self, aside: Path, step: int, state: TrainingState, sampler: Mapping[str, Any]
    ) -> dict[str, FileEntry]:
        """Write this rank's files, while nothing may change their state."""
        rank, names = self._ranks.rank, state.names
        state.check_save(step, sampler)
        parts: dict[int | None, dict[str, Any]] = {rank: state.own(rank, self._ranks.world_size, sampler)}
        if rank == 0:
            parts[None] = state.shared()
        live = {name: item for content in parts.values() for name, item in named_tensors(content, names).items()}
        with standing_still(step, state.optimizer, live):
            lock = self.identity.lock
            return {
                file_of(owner): write_part(aside, content, names, step=step, lock=lock, rank=owner)
                for owner, content in parts.items()
            }

    def _header(self, step: int, state: TrainingState) -> Header:
        return Header(
            kind=self.identity.kind,
            step=step,
            world_size=self._ranks.world_size,
            data_lock=self.identity.data_lock,
            lock=self.identity.lock,
            config=dict(self.identity.config),
            parameters=parameter_entries(state.module),
            optimizer=optimizer_names(state.module, state.optimizer),
            created_at=time.time(),
            versions={"torch": torch.__version__},
        )

    def _commit(self, aside: Path, manifest: Manifest) -> Path:
        target = step_directory(self.root, manifest.header.step)
        try:
            (aside / MANIFEST).write_text(manifest.model_dump_json(indent=1))
            flush(aside / MANIFEST, aside)
            doomed = [self._set_aside(path) for path in spellings(self.root, manifest.header.step)]
            aside.rename(target)
            flush(self.root)
        except (OSError, CheckpointNotSaved):
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self._remove([*doomed, *map(self._set_aside, self._surplus())])
        return target

    def _surplus(self) -> list[Path]:
        if self.keep is None:
            return []
        unpinned = []
        for path in step_directories(self.root):
            try:
                check_spelling(path)
                unpinned += [] if read_manifest(path).pinned else [path]
            except ManifestInvalid:
                continue  # evidence of a fault, not a checkpoint: neither counted nor removed
        return unpinned[self.keep :]

    def _set_aside(self, path: Path) -> Path:
        """Rename a checkpoint before its removal, so that a kill during the removal leaves no damaged checkpoint."""
        return path.rename(self.root / f".{path.name}.{os.getpid()}.old{ASIDE}")

    def _remove(self, doomed: list[Path]) -> None:
        if doomed:  # in the background: only the next save has to wait for it
            self._removal = self._remover.submit(_delete, doomed)

    def _accept(self, path: Path, state: TrainingState) -> Manifest:
        try:
            check_spelling(path)
            manifest = read_manifest(path)
            check_listing(manifest)
        except ManifestInvalid as error:
            raise CheckpointDamaged(f"{path.name}: {error}") from None
        self.identity.check(manifest.header, path.name)
        check_parameters(manifest.header, state.module, state.optimizer, path.name)
        for name in (SHARED, *map(rank_file, range(self._ranks.world_size))):
            if not (path / name).is_file():
                raise CheckpointDamaged(f"{path.name}: {name} is missing", name)
        return manifest

    def _read(self, path: Path, state: TrainingState) -> tuple[Any, Any]:
        manifest = read_manifest(path)
        shared, own = (read_part(path, name, manifest) for name in (SHARED, rank_file(self._ranks.rank)))
        state.check(shared, own, manifest.header.step, path.name)
        return shared, own

    def _report(self, step: int, path: Path) -> None:
        if self._telemetry is not None and self._ranks.rank == 0:
            self._telemetry.checkpoint(step, str(path.relative_to(self._run_root)))

    def _say(self, text: str) -> None:
        if self._telemetry is not None and self._ranks.rank == 0:
            self._telemetry.message(text)


def _delete(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path)
