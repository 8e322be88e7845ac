"""Gradient audits of many targets in one start of the ranks: run by torchrun as a stage, judged by the tests.

`audited(root, specs, names, world_size)` starts it and returns the results by target; each is audited by the stages'
own functions, in a separate run folder. `observed(root, name, rank, step)` is the
gradient that a rank ended with, in float64.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.environment import for_children
from tests.support.results import saved_result
from trainer.common.context import StageContext
from trainer.contract.config import RunConfig
from trainer.contract.files import write_json_atomically
from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.paths import RunPaths
from trainer.contract.result import Result
from trainer.contract.targets import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
KIND = "gradient-audit"
NAMES_FILE = "cases.json"
SECONDS = 280
SUMS_SHARDS = version("torch").startswith("2.8.")
"""Whether this torch adds float32 gradients of `fully_shard` up over gloo instead of averaging them (#162338)."""


def audited(root: Path, specs: Mapping[str, str], *, world_size: int = 2, **params: Any) -> dict[str, Result]:
    """Audit every target of `specs` (name -> `module:Object`) and return the results by name."""
    root.mkdir(parents=True)
    spec = kinds()[KIND]
    for name in specs:
        given = resolve_params(spec, None, {"device": "cpu", "target": name, "world_size": world_size, **params})
        config = RunConfig(
            run_id=1, kind=KIND, params=given.model_dump(mode="json"), backend="gloo", device="cpu", datasets_dir="/"
        )
        (root / name).mkdir()
        write_json_atomically(root / name / "config.json", config.model_dump(mode="json"))
        write_json_atomically(root / "config.json", config.model_dump(mode="json"))
    write_json_atomically(root / NAMES_FILE, list(specs))
    attempt = RunPaths(root).attempt("lab", 1)
    attempt.root.mkdir(parents=True)
    entry = ["--run-dir", str(root), "--stage", "lab", "--attempt", "1", "--entry", "tests.support.target_lab:run"]
    launch = ["-m", "trainer.launch", "--attempt-dir", str(attempt.root), "--nproc", str(world_size), "--", *entry]
    done = subprocess.run(
        [sys.executable, *launch],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", VARIABLE: ",".join(dict.fromkeys(specs.values()))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    logs = [path.read_text(errors="replace") for path in sorted((attempt.root / "logs").glob("rank*"))]
    assert done.returncode == 0, "\n".join([done.stdout, *logs])
    return {name: saved_result(root / name / "result.json") for name in specs}


def run(context: StageContext) -> None:
    """Audit every target, stage by stage, on these ranks."""
    from trainer.common.distributed import process_group

    with process_group(context) as group:
        for name in json.loads((context.paths.root / NAMES_FILE).read_text()):
            params = context.params.model_copy(update={"target": name})
            _audit(replace(context, paths=RunPaths(context.paths.root / name), params=params), group)


def _audit(context: StageContext, group: Any) -> None:
    from trainer.kinds.gradient_audit.audit import audit_target
    from trainer.kinds.gradient_audit.compare import write_result
    from trainer.kinds.gradient_audit.inspection import inspect_target
    from trainer.kinds.gradient_audit.measured import Measured
    from trainer.kinds.gradient_audit.reference import write_reference
    from trainer.targets.registry import load_target

    inspect_target(context, group)
    if group.rank == 0 and load_target(context.params.target).has("optimizer"):
        _reference_apart(context)  # its optimizer must find no process group of two ranks
    elif group.rank == 0:
        write_reference(context, replace(group, world_size=1))
    group.barrier("reference")
    audit_target(context, group)
    if group.rank == 0:
        write_result(context, Measured.load(context))
    group.barrier("result")


def _reference_apart(context: StageContext) -> None:
    stage = ["--stage", "reference", "--attempt", "1", "--entry", "trainer.kinds.gradient_audit.reference:run"]
    (context.paths.root / "reference" / "attempt_1").mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-m", "trainer.entry", "--run-dir", str(context.paths.root), *stage],
        env=for_children(os.environ),
        check=True,
    )


def specs_of(module: str, cases: Sequence[str], name: str = "TARGETS") -> dict[str, str]:
    """Return `module:name.case` for every case."""
    return {case: f"{module}:{name}.{case}" for case in cases}


def observed(root: Path, name: str, rank: int, step: int = 0) -> dict[str, Any]:
    """Return the float64 gradient of one rank, by parameter."""
    import torch

    from trainer.kinds.gradient_audit.handover import Handover

    content = torch.load(Handover(RunPaths(root / name)).evidence(rank), weights_only=True)
    assert content["dtype"] == "float64"
    found: dict[str, Any] = content["steps"][step]["observed"]
    return found
