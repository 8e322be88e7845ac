"""The program of a job's batch script, on its first node: finds the hosts and a port, starts one supervisor a node.

`python -m worker.executors.slurm.head ATTEMPT_DIR`. Standard library only. Exit code: 0 if every rank of every node
exited with 0, 1 if not, 2 if the job cannot work here.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainer.contract.paths import AttemptPaths
from worker.executors.slurm.orders import Ending, read_quickly, write_ending, write_quickly

NODE: Final = "worker.executors.slurm.node"
LOOK_SECONDS: Final = 0.5
FIRST_PORT, PORTS = 20_000, 10_000
"""Below the range from which the kernel takes ports for outgoing connections."""


def main() -> int:
    """Run the nodes of the job to their end."""
    paths = AttemptPaths(Path(sys.argv[1]))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # the supervisors get it too; this program ends after them
    plan = json.loads(paths.plan.read_text())
    job_id = int(os.environ["SLURM_JOB_ID"])
    if int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0:
        write_quickly(paths.nodes / "requeued.json", {"job_id": job_id})
        return _failed("Slurm started this job again; a new job continues the stage", 0)
    try:
        hosts = hosts_of(os.environ["SLURM_JOB_NODELIST"])
        addresses = addresses_of(hosts) if len(hosts) > 1 else {}
    except (OSError, subprocess.SubprocessError) as error:
        return _failed(f"scontrol on {socket.gethostname()} cannot list the hosts of the job: {error}", 2)
    port = free_port(candidate(job_id))
    endpoint = f"{addresses.get(hosts[0], hosts[0])}:{port}"
    group = {"hosts": hosts, "addresses": addresses, "endpoint": endpoint if len(hosts) > 1 else ""}
    write_quickly(paths.nodes / "head.json", {"job_id": job_id, "at": time.time(), **group})
    argv = step_argv(plan, os.environ, [str(paths.root), json.dumps(group)])
    step = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=step_environment(os.environ))
    return _wait(step, paths, hosts)


def candidate(job_id: int) -> int:
    """Return the port to try first; jobs that share a node rarely have the same."""
    return FIRST_PORT + job_id % PORTS


def free_port(first: int) -> int:
    """Return `first` if nothing listens on it here, else one that the kernel says is free."""
    for port in (first, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
                probe.listen(1)
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return first


def hosts_of(nodes: str) -> list[str]:
    """Return the hosts of the job, the first one first. Raises OSError, subprocess.SubprocessError."""
    found = _scontrol("show", "hostnames", nodes).split()
    if not found:
        raise OSError(f"scontrol show hostnames {nodes} printed nothing")
    return found


def addresses_of(hosts: Sequence[str]) -> dict[str, str]:
    """Return the name or address by which each host is reached: its own name if that resolves, else Slurm's address."""
    found = dict(re.findall(r"NodeName=(\S+).*? NodeAddr=(\S+)", _scontrol("-o", "show", "node", ",".join(hosts))))
    return {host: host if _resolves(host) else found.get(host, host) for host in hosts}


def step_argv(plan: Mapping[str, Any], environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """Return the srun command: one supervisor on every node, with the CPUs of all its ranks.

    srun does not take `--cpus-per-task` from sbatch (22.05 to 23.02), so it is given; with fewer CPUs allocated, all.
    """
    allocated = [
        int(count) for count in re.findall(r"([0-9]+)(?:\(x[0-9]+\))?", environment["SLURM_JOB_CPUS_PER_NODE"])
    ]
    cpus = min([int(plan["cpus"]), *allocated])
    options = {"nodes": plan["nodes"], "ntasks": plan["nodes"], "ntasks-per-node": 1, "cpus-per-task": cpus}
    return [
        "srun",
        *(f"--{name}={value}" for name, value in options.items()),
        *("--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--export=ALL", "--input=none"),
        *plan["python"],
        *("-m", NODE, *arguments),
    ]


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of srun without options for it that a set-up line may have left."""
    return {name: value for name, value in environment.items() if not name.startswith("SRUN_")}


def _scontrol(*arguments: str) -> str:
    done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def _wait(step: "subprocess.Popen[bytes]", paths: AttemptPaths, hosts: Sequence[str]) -> int:
    """Wait for the end of the step; when the ranks of a node fail, let the other nodes know."""
    told = False
    while step.poll() is None:
        time.sleep(LOOK_SECONDS)
        failed = next((host for number, host in enumerate(hosts) if _failed_on(paths, number)), "")
        if failed and not told and len(hosts) > 1:
            write_ending(paths.nodes, Ending(failed=failed))
            told = True
    well = all(not _failed_on(paths, number, missing=True) for number in range(len(hosts)))
    return 0 if well and step.returncode == 0 else 1


def _failed_on(paths: AttemptPaths, number: int, *, missing: bool = False) -> bool:
    report = read_quickly(paths.node(number).exit)
    if not report:
        return missing
    return any(rank.get("exit_code") != 0 for rank in report["ranks"]) or not report["ranks"]


def _failed(text: str, code: int) -> int:
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
