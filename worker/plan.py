"""What is started for one attempt of one stage: argv, environment, folder. Pure, and printable as a command."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.runs.models import Run
from app.settings import Settings
from trainer.contract.kinds import Program, StagePlan
from trainer.contract.paths import AttemptPaths, RunPaths
from trainer.contract.placement import shape
from trainer.contract.targets import VARIABLE
from worker.marker import MARKER, marker_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """One process group that can be started."""

    run_id: int
    stage: str
    attempt: int
    launcher: str
    """`python`, `torchrun` or `command`."""
    ranks: int
    """0: as many as a command turns out to start."""
    imports: str
    """nothing, torch or compiler; see `StagePlan`."""
    command: tuple[str, ...]
    """Arguments for a Python interpreter with this product; the executor chooses the interpreter. The complete argv of
    the launcher `command`."""
    environment: Mapping[str, str]
    """Variables set in addition to the environment of the starting process."""
    search_path: str = ""
    """Folder to put first on PYTHONPATH."""
    terminal: bool = False
    """Whether only the command that recorded the run may start it, in its own terminal."""
    arrived: bool = False
    """Whether it already ran elsewhere and its records were imported."""
    cwd: Path
    paths: AttemptPaths
    marker: str
    """The value of the marker in the environment of every process of the attempt; also used as rendezvous id."""
    grace_seconds: float
    """Seconds between SIGTERM and SIGKILL."""
    nodes: int = 1
    """Machines it runs on, each with the same number of ranks."""
    launch: Mapping[str, Any] = field(default_factory=dict)
    """Options for the executor, from the run's `launch`."""

    def shell(self) -> str:
        """Return the plan as a shell command."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        if self.search_path:
            settings.append(f'PYTHONPATH={shlex.quote(self.search_path)}"${{PYTHONPATH:+:$PYTHONPATH}}"')
        command = shlex.join(self.command)
        program = command if self.launcher == "command" else f"python {command}"
        return f"cd {shlex.quote(str(self.cwd))} && {' '.join(settings)} {program}"


def run_paths(settings: Settings, run_id: int) -> RunPaths:
    """Return the paths of one run."""
    return RunPaths(settings.runs_dir / str(run_id))


def plan_attempt(run: Run, stage: StagePlan, attempt: int, settings: Settings, database_id: str) -> AttemptPlan:
    """Return the plan of one attempt.

    Raises ValueError for a stage name that is not a plain word, LookupError for a script that is not registered.
    """
    run_id = int(run.id or 0)
    paths = run_paths(settings, run_id)
    marker = marker_of(database_id, run_id, stage.name, attempt)
    if stage.program is not None:
        attempt_paths = paths.attempt(stage.name, attempt)
        return _plan_program(run, stage, stage.program, paths=attempt_paths, marker=marker, settings=settings)
    ranks = int(run.params["world_size"]) if stage.launcher == "torchrun" else 1
    nodes, per_node = shape(run.launch, ranks) if stage.launcher == "torchrun" else (1, 1)
    return AttemptPlan(
        run_id=run_id,
        stage=stage.name,
        attempt=attempt,
        launcher=stage.launcher,
        ranks=ranks,
        imports="torch" if stage.imports == "nothing" and stage.launcher == "torchrun" else stage.imports,
        command=_command(run, stage, paths, attempt, nodes=nodes, per_node=per_node, marker=marker),
        environment=_environment(run, marker, settings),
        cwd=paths.root,
        paths=paths.attempt(stage.name, attempt),
        marker=marker,
        grace_seconds=settings.stop_grace_seconds,
        nodes=nodes,
        launch=run.launch,
    )


def _plan_program(
    run: Run, stage: StagePlan, program: Program, *, paths: AttemptPaths, marker: str, settings: Settings
) -> AttemptPlan:
    command = program.command
    if program.script and not program.imported:
        if program.script not in settings.scripts:
            raise LookupError(f"script {program.script!r} is not registered here (DDP_AUDIT_SCRIPTS)")
        command = settings.scripts[program.script]
    return AttemptPlan(
        run_id=int(run.id or 0),
        stage=stage.name,
        attempt=int(paths.root.name.removeprefix("attempt_")),
        launcher=stage.launcher,
        ranks=0,
        imports="nothing",
        command=command,
        environment={MARKER: marker, program.folder_variable: str(paths.root), **program.environment},
        search_path=str(program.site),
        terminal=bool(program.command) and not program.imported,
        arrived=program.imported,
        cwd=Path.cwd(),
        paths=paths,
        marker=marker,
        grace_seconds=settings.stop_grace_seconds,
        launch=run.launch,
    )


def _command(
    run: Run, stage: StagePlan, paths: RunPaths, attempt: int, *, nodes: int, per_node: int, marker: str
) -> tuple[str, ...]:
    entry = [
        *("--run-dir", str(paths.root), "--stage", stage.name, "--attempt", str(attempt)),
        *("--entry", stage.entry, "--arguments", json.dumps(dict(stage.arguments))),
    ]
    if stage.launcher == "python":
        return ("-m", "trainer.entry", *entry)
    launch = ["--attempt-dir", str(paths.attempt(stage.name, attempt).root), "--nproc", str(per_node)]
    if nodes > 1:
        launch += ["--nnodes", str(nodes), "--rdzv-id", marker]
    if "endpoint" in run.launch:
        launch += ["--endpoint", str(run.launch["endpoint"])]
    return ("-m", "trainer.launch", *launch, "--", *entry)


def _environment(run: Run, marker: str, settings: Settings) -> dict[str, str]:
    environment = {
        MARKER: marker,
        # The run's folder is the working directory; nothing in it may be imported as a module.
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",  # logs are read as such, whatever the worker's own streams can hold
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    if settings.targets:
        environment[VARIABLE] = settings.targets
    if run.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # a CPU run must not use memory of a GPU that is not assigned to it
    return environment
