"""Runs the stages of a kind without worker or database: `from tests.support.stages import LocalRun`.

`run = LocalRun.create(tmp_path / "1", "token-parity", world_size=2)`, then `run.all_stages()` and `run.result()`; or
stage by stage with `run.stage("distributed")` (waits) and `run.start("distributed")` (returns the process).
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.results import saved_result
from trainer.contract.config import RunConfig
from trainer.contract.files import write_json_atomically
from trainer.contract.kinds import StagePlan, kinds, resolve_params
from trainer.contract.paths import AttemptPaths, RunPaths
from trainer.contract.result import Result

ROOT = Path(__file__).resolve().parents[2]
STAGE_SECONDS = 280


class StageFailed(AssertionError):
    """A stage ended differently than the test expects; the text contains its output."""


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """One run's folder and the stages that its kind plans."""

    paths: RunPaths
    kind: str
    plan: list[StagePlan]
    world_size: int
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of every stage."""

    @classmethod
    def create(
        cls,
        root: Path,
        kind: str,
        preset: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        datasets_dir: Path | None = None,
        resume_from: Path | None = None,
        **given: Any,
    ) -> "LocalRun":
        """Resolve the parameters (`device` is cpu unless given) and write `config.json`."""
        spec = kinds()[kind]
        params = resolve_params(spec, preset, {"device": "cpu", **given})
        config = RunConfig(
            run_id=1,
            kind=kind,
            preset=preset,
            params=params.model_dump(mode="json"),
            backend="gloo",
            device="cpu",
            datasets_dir=str(datasets_dir or root.parent / "datasets"),
            resume_from=None if resume_from is None else str(resume_from),
        )
        paths = RunPaths(root)
        root.mkdir(parents=True, exist_ok=True)  # as the worker does
        write_json_atomically(paths.config, config.model_dump(mode="json"))
        return cls(
            paths=paths,
            kind=kind,
            plan=spec.stages(params),
            world_size=params.world_size,
            environment=environment or {},
        )

    def all_stages(self) -> None:
        """Run every stage to its end. Raises StageFailed at the first stage that does not end with 0."""
        for stage in self.plan:
            self.stage(stage.name)

    def stage(self, name: str, *, attempt: int = 1, expect: int | None = 0) -> int:
        """Run one stage to its end and return its exit code. Raises StageFailed unless it is `expect` (None: any)."""
        process = self.start(name, attempt=attempt)
        try:
            process.wait(STAGE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if expect is not None and process.returncode != expect:
            raise StageFailed(f"stage {name} ended with {process.returncode}\n{self.output(name, attempt)}")
        return process.returncode

    def start(self, name: str, *, attempt: int = 1) -> "subprocess.Popen[bytes]":
        """Start one stage in its own session and return the process (the launcher, for a stage with ranks)."""
        stage = next(item for item in self.plan if item.name == name)
        paths = self.attempt(name, attempt)
        argv = [
            *("--run-dir", str(self.paths.root), "--stage", name, "--attempt", str(attempt)),
            *("--entry", stage.entry, "--arguments", json.dumps(dict(stage.arguments))),
        ]
        if stage.launcher == "torchrun":
            launch = ["--attempt-dir", str(paths.root), "--nproc", str(self.world_size), "--"]
            argv = ["trainer.launch", *launch, *argv]
        else:
            argv = ["trainer.entry", *argv]
        paths.root.mkdir(parents=True, exist_ok=True)
        with paths.shim_log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *argv],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment},
                start_new_session=True,
            )

    def attempt(self, stage: str, number: int = 1) -> AttemptPaths:
        """Return the paths of one attempt."""
        return self.paths.attempt(stage, number)

    def events(self, stage: str, rank: int = 0, *, attempt: int = 1, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the events of one rank, only of type `kind` if given."""
        lines = self.attempt(stage, attempt).events(rank).read_text().splitlines()
        return [event for event in map(json.loads, lines) if kind in (None, event["type"])]

    def ranks_exit(self, stage: str, attempt: int = 1) -> dict[str, Any]:
        """Return the launcher's report on the ends of the ranks."""
        document: dict[str, Any] = json.loads(self.attempt(stage, attempt).ranks_exit.read_text())
        return document

    def output(self, stage: str, attempt: int = 1) -> str:
        """Return everything the launcher and the ranks printed."""
        paths = self.attempt(stage, attempt)
        files = [paths.shim_log, *sorted((paths.root / "logs").glob("rank*"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in files if path.exists())

    def result(self) -> Result:
        """Return the checked `result.json`."""
        return saved_result(self.paths.result)
