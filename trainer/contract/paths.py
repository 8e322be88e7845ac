"""All paths in a run's folder, with one class per level: run > stage > attempt > rank."""

import re
from dataclasses import dataclass
from pathlib import Path

BREADCRUMB = re.compile(r"rank([0-9]{1,6})\.crumb")
STAGE_NAME = re.compile(r"^[a-z][a-z0-9-]{0,63}$")


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    """Files of one attempt of one stage."""

    root: Path
    """`<runs dir>/<run id>/<stage>/attempt_<n>`"""

    @property
    def run(self) -> Path:
        """Folder of the run."""
        return self.root.parent.parent

    def events(self, rank: int) -> Path:
        """Event lines of one rank."""
        return self.root / f"rank{rank}.jsonl"

    def breadcrumb(self, rank: int) -> Path:
        """Memory-mapped last known position of one rank."""
        return self.root / f"rank{rank}.crumb"

    def breadcrumbs(self) -> dict[int, Path]:
        """Return the breadcrumbs there are by now, by rank."""
        found = ((BREADCRUMB.fullmatch(path.name), path) for path in self.root.glob("rank*.crumb"))
        return {int(match[1]): path for match, path in found if match}

    def stacks(self, rank: int) -> Path:
        """Thread stacks one rank dumped on request (SIGUSR1)."""
        return self.root / f"rank{rank}.stacks"

    def log(self, rank: int, stream: str) -> Path:
        """Captured output of one rank; `stream` is `stdout` or `stderr`."""
        return self.root / "logs" / f"rank{rank}.{stream}"

    def error(self, rank: int) -> Path:
        """Last uncaught exception of one rank as JSON."""
        return self.root / f"rank{rank}.error.json"

    @property
    def exit(self) -> Path:
        """How the attempt ended: every rank's exit code or signal. Written once, by the shim."""
        return self.root / "exit.json"

    @property
    def ranks_exit(self) -> Path:
        """How the launcher saw every rank end; written by `trainer.launch`, read by the shim."""
        return self.root / "ranks.json"

    @property
    def plan(self) -> Path:
        """What the shim has to start (argv, env, cwd, deadlines)."""
        return self.root / "plan.json"

    @property
    def shim(self) -> Path:
        """Identity of the shim (pid, start time, boot id), written by the shim before it starts anything."""
        return self.root / "shim.json"

    @property
    def nodes(self) -> Path:
        """Folder with one folder per node, for attempts on several nodes or under a scheduler."""
        return self.root / "nodes"

    def node(self, number: int) -> "NodePaths":
        """Files of one node, numbered from 0."""
        return NodePaths(self.root, number)

    @property
    def shim_log(self) -> Path:
        """Output of the shim and of the launcher itself."""
        return self.root / "launcher.log"


@dataclass(frozen=True, slots=True)
class NodePaths(AttemptPaths):
    """Files of one node of an attempt: its own supervisor and reports; the files of ranks are the attempt's."""

    number: int

    @property
    def folder(self) -> Path:
        """Folder of this node."""
        return self.nodes / str(self.number)

    @property
    def exit(self) -> Path:
        """How the ranks of this node ended."""
        return self.folder / "exit.json"

    @property
    def ranks_exit(self) -> Path:
        """How the launcher of this node saw its ranks end."""
        return self.folder / "ranks.json"

    @property
    def shim(self) -> Path:
        """Identity of the supervisor of this node."""
        return self.folder / "shim.json"

    @property
    def state(self) -> Path:
        """Processes of this node as last seen by its supervisor."""
        return self.folder / "state.json"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Files of one run."""

    root: Path
    """`<runs dir>/<run id>`"""

    @property
    def config(self) -> Path:
        """The configuration of the run; see `trainer.contract.config`."""
        return self.root / "config.json"

    @property
    def result(self) -> Path:
        """The verdict; see `trainer.contract.result`."""
        return self.root / "result.json"

    @property
    def artifacts(self) -> Path:
        """Files offered for download."""
        return self.root / "artifacts"

    @property
    def work(self) -> Path:
        """Files passed between stages of this run (tensors, plans); not offered for download."""
        return self.root / "work"

    def checkpoints(self, stage: str | None = None) -> Path:
        """Folder of `step-NNNN` checkpoints, of the run or of one trajectory."""
        return self.root / "checkpoints" if stage is None else self.stage(stage) / "checkpoints"

    def stage(self, name: str) -> Path:
        """Folder of one stage.

        Raises ValueError for a name that is not a plain lower-case word.
        """
        if not STAGE_NAME.match(name):
            raise ValueError(f"stage name {name!r} must match {STAGE_NAME.pattern}")
        return self.root / name

    def kills(self, stage: str) -> Path:
        """Planned kills of one stage; see `trainer.contract.kills`."""
        return self.stage(stage) / "kills.json"

    def attempt(self, stage: str, number: int) -> AttemptPaths:
        """Folder of one attempt, numbered from 1."""
        return AttemptPaths(self.stage(stage) / f"attempt_{number}")
