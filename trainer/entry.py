"""Process entry point of every stage: `python -m trainer.entry --run-dir D --stage S --attempt N --entry M:F`.

Under torchrun it runs once per rank (RANK, WORLD_SIZE and LOCAL_RANK are in the environment); without torchrun it is
rank 0 of 1. Exit code 0: the stage finished; 1: an exception, reported in the events and on stderr;
64 + n is reserved for stages that end on purpose (65: preempted after a save).
"""

import argparse
import faulthandler
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from trainer.common.context import StageContext, load_params
from trainer.common.telemetry import Telemetry
from trainer.contract.config import RunConfig
from trainer.contract.files import write_json_atomically
from trainer.contract.paths import AttemptPaths, RunPaths


def main() -> int:
    """Run one rank of one stage and return its exit code."""
    options = _options()
    paths = RunPaths(Path(options.run_dir))
    attempt = paths.attempt(options.stage, options.attempt)
    rank = int(os.environ.get("RANK", "0"))
    telemetry = Telemetry(attempt, rank)
    _answer_stack_requests(attempt, rank)
    try:
        config = RunConfig.load(paths.config)
        kind, params = load_params(config)
        context = StageContext(
            config=config,
            kind=kind,
            params=params,
            paths=paths,
            stage=options.stage,
            attempt=options.attempt,
            rank=rank,
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            telemetry=telemetry,
            arguments=json.loads(options.arguments),
        )
        _import_for(context)
        module, function = options.entry.split(":")
        code = getattr(importlib.import_module(module), function)(context)
    except Exception as error:
        _report(error, telemetry, attempt, rank)
        raise
    telemetry.end()
    return int(code or 0)


def _import_for(context: StageContext) -> None:
    """Import what the stage's plan requires, without leaving files in the temporary folder."""
    plan = {stage.name: stage for stage in context.kind.stages(context.params)}.get(context.stage)
    if plan is not None and plan.imports == "compiler":
        from trainer.common.policy import import_compiler

        import_compiler()


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--arguments", default="{}")
    return parser.parse_args()


def _answer_stack_requests(attempt: AttemptPaths, rank: int) -> None:
    # The file object must stay open for as long as faulthandler may write to it.
    handle = attempt.stacks(rank).open("w")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=handle, all_threads=True)


def _report(error: Exception, telemetry: Telemetry, attempt: AttemptPaths, rank: int) -> None:
    telemetry.error(error)
    last_line = f"{type(error).__name__}: {error}".splitlines()[0]
    write_json_atomically(
        attempt.error(rank),
        {
            "rank": rank,
            "error": type(error).__name__,
            "last_line": last_line,
            "phase": telemetry.crumb.phase,
            "step": telemetry.crumb.step,
        },
    )


def leave(code: int) -> NoReturn:
    """End the process without unloading its libraries.

    All files are closed or flushed by now and the process group is destroyed; tearing down torch at interpreter exit
    would only cost seconds per stage.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
