"""The probe runs in the script's own threads only: a backend's thread would abort a process that ends just then."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.kinds.trace.params import SITE

SCRIPT = """
import json, sys, threading
import torch
import torch.distributed as dist
from ddp_audit_probe.files import Crumb

assert torch.autograd.Variable._execution_engine.queue_callback  # without it the probe waits inside the hook
threads, leave = [], Crumb.leave

def noted(crumb):
    threads.append((threading.current_thread() is threading.main_thread(), crumb.operation))
    leave(crumb)

Crumb.leave = noted

def own(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
if sys.argv[1] == "own":
    model.register_comm_hook(None, own)
for _ in range(3):
    torch.nn.functional.cross_entropy(model(torch.ones(4, 3)), torch.tensor([0, 1, 0, 1])).backward()
print(json.dumps(threads))
"""


@pytest.mark.parametrize("hook", ["none", "own"])
def test_reductions_are_noted_in_the_threads_of_the_script(tmp_path: Path, hook: str) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, hook],
        env={**os.environ, **rank, "PYTHONPATH": str(SITE), "DDP_AUDIT_TRACE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    noted = [(is_main, what) for is_main, what in json.loads(done.stdout.splitlines()[-1]) if "bucket" in what]
    assert len(noted) == 3
    assert all(is_main for is_main, _ in noted)
