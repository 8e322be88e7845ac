"""A real Slurm on this machine, in a temporary folder: munged, slurmctld, and a slurmd for every node.

Three nodes on loopback with four CPUs each: two see everything, the third (partition `blind`) does not see the folder
that the tests share. `with rig(folder) as cluster:` starts everything and ends it by its processes.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.host import processes

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
NODES = ("node1", "node2")
BLIND = "node3"
CPUS = 4
GPUS = 2
"""Of each node that sees the folder: Slurm hands them out, and there are no devices behind them."""
MEMORY = 6000
"""MiB of a job that requests none: Slurm ends jobs that use more, and none of the tests comes near."""
PATIENCE = 60.0
CONFIGURATION = """
ClusterName=ddpaudit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={task}
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode={memory}
GresTypes=gpu
FirstJobId={first}
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=8
MinJobAge=300
SlurmdTimeout=6
SlurmctldTimeout=10
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def memory_is_limited() -> bool:
    """Whether Slurm can limit the memory of jobs here: by control groups of version 1, without systemd."""
    return os.access("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", os.W_OK)


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _writes_to(pid: int, path: Path) -> bool:
    """Whether a process holds a file open: the steps of a node write to the log of its slurmd."""
    with contextlib.suppress(OSError):
        return any(link.readlink() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A running cluster."""

    def __init__(self, folder: Path, hidden: Path) -> None:
        self.folder, self.hidden = folder, hidden
        self.conf = folder / "slurm.conf"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(self.conf)}

    def call(self, *argv: str, **options: Any) -> str:
        """Run one of Slurm's programs and return its output; fails with its messages."""
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=60, check=False, **options
        )
        assert done.returncode == 0, f"{argv}: {done.stderr or done.stdout}\n{self.logs()}"
        return str(done.stdout)

    def job(self, job_id: int) -> dict[str, str]:
        """Return the fields of `scontrol show job`."""
        text = self.call("scontrol", "--oneliner", "show", "job", str(job_id))
        return dict(part.partition("=")[::2] for part in text.split() if "=" in part)

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait until `condition` returns a true value and return it; fails with the logs of the daemons."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{what} did not come within {seconds:g} s\n{self.logs()}")

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in files)

    def start(self, name: str) -> None:
        """Start a daemon: munged, slurmctld, or the slurmd of a node."""
        place = self.folder
        if name == "munged":
            argv = ["munged", "--foreground", "--force", f"--socket={place}/munge.socket"]
            argv += [f"--key-file={place}/munge.key", f"--pid-file={place}/munge.pid"]
            argv += [f"--log-file={place}/munge.log", f"--seed-file={place}/munge.seed"]
        elif name == "slurmctld":
            argv = ["slurmctld", "-D"]
        elif name == BLIND:
            script = f"mount -t tmpfs none '{self.hidden}' && exec slurmd -D -N {name}"
            argv = ["unshare", "--mount", "sh", "-c", script]
        else:
            argv = ["slurmd", "-D", "-N", name]
        with (place / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                argv, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a daemon."""
        process = self.daemons.pop(name)
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def lose(self, node: str) -> None:
        """Let a node vanish with everything that runs on it."""
        log = self.folder / f"slurmd-{node}.log"
        found = [self.daemons[node].pid, *(pid for pid in processes.all_pids() if _writes_to(pid, log))]
        found += [child.pid for pid in list(found) for child in processes.children(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.daemons.pop(node).wait()

    def ready(self, *nodes: str) -> bool:
        """Whether nodes accept jobs."""
        argv = ["sinfo", "-h", "-N", "-o", "%N %T", "-n", ",".join(nodes)]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False)
        states = dict(line.split()[:2] for line in done.stdout.splitlines() if len(line.split()) > 1)
        return all(states.get(name) in {"idle", "mixed", "allocated"} for name in nodes)

    def calm(self) -> None:
        """End all jobs."""
        self.call("scancel", "--user", str(os.getuid()))
        self.until(lambda: not self.call("squeue", "-h").strip(), "the end of all jobs")


def _write(folder: Path) -> None:
    import pwd

    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    user, host = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname()
    values = {
        "ctld_port": _free_port(),
        "memory": MEMORY,
        "task": "task/cgroup" if memory_is_limited() else "task/none",
        # The control groups of two clusters on this machine differ in the numbers of their jobs only.
        "first": 1 + 1000 * secrets.randbelow(60_000),
    }
    lines = [CONFIGURATION.format(folder=folder, host=host, user=user, **values)]
    for name in (*NODES, BLIND):
        gpus = f" Gres=gpu:{GPUS}" if name in NODES else ""
        address = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()}"
        lines.append(f"NodeName={name} {address} CPUs={CPUS} RealMemory={4 * MEMORY}{gpus}")
    lines += [
        f"PartitionName=main Nodes={','.join(NODES)} Default=YES MaxTime=60 PriorityTier=1",
        f"PartitionName=urgent Nodes={','.join(NODES)} MaxTime=60 PriorityTier=10",
        f"PartitionName=blind Nodes={BLIND} MaxTime=60",
    ]
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n")
    for number in range(GPUS):
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # another /dev/null
    gpus = f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]"
    (folder / "gres.conf").write_text(f"AutoDetect=off\nNodeName={','.join(NODES)} {gpus}\n")
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")


@contextlib.contextmanager
def rig(folder: Path, hidden: Path) -> Iterator[Cluster]:
    """Yield a running cluster whose third node does not see the folder `hidden`."""
    absent = missing()
    assert not absent, f"not installed: {', '.join(absent)} (Debian: slurm-wlm and munge)"
    folder.chmod(0o755)
    _write(folder)
    cluster = Cluster(folder, hidden)
    try:
        cluster.start("munged")
        cluster.until((folder / "munge.socket").exists, "the socket of munged")
        for name in ("slurmctld", *NODES, BLIND):
            cluster.start(name)
        cluster.until(lambda: cluster.ready(*NODES, BLIND), "the nodes of the cluster")
        yield cluster
    finally:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            cluster.calm()
        for name in reversed(list(cluster.daemons)):
            cluster.end(name)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        rig(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()) as running,
        contextlib.suppress(KeyboardInterrupt),
    ):
        sys.stdout.write(f"export SLURM_CONF={running.conf}\n")
        sys.stdout.flush()
        signal.pause()
