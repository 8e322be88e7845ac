"""Traced ranks without the import of torch for each: forks of this process run a script with the probe in them.

Reads one JSON request per line, `{script, arguments, folder, world_size, options, environment}`, and answers each with
`{codes}`, the exit codes in rank order. The import hook itself is not used here; tests of real launchers cover it.
"""

import json
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch

from trainer.common.policy import import_compiler

SITE = "trainer/kinds/trace/site"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def rank_main(request: dict[str, Any], rank: int, port: int) -> NoReturn:
    code = 1
    try:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(request["world_size"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            **request.get("environment", {}),
        )
        out = os.open(f"{request['folder']}/rank{rank}.out", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        torch.set_num_threads(1)
        if request["traced"]:
            from ddp_audit_probe.entry import Probe

            probe = Probe(request["folder"], request.get("options", {}))
            probe.attach(torch)
        sys.argv = [request["script"], *request["arguments"]]
        sys.path.insert(0, str(Path(request["script"]).parent))
        runpy.run_path(request["script"], run_name="__main__")
        code = 0
        if request["traced"]:
            probe.end()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    sys.path.insert(0, str(Path(SITE).absolute()))
    import_compiler()  # the first optimizer of a process imports it
    for line in sys.stdin:
        request, port, pids = json.loads(line), free_port(), []
        Path(request["folder"]).mkdir(parents=True)
        for rank in range(request["world_size"]):
            pid = os.fork()
            if pid == 0:
                rank_main(request, rank, port)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        sys.stdout.write(json.dumps({"codes": codes}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
