"""`ddp-audit show`: its output about a run can be typed in again."""

import re

import pytest
from sqlalchemy import Engine

from app.settings import Settings
from tests.support.cli import call
from tests.support.pages_data import add_run
from trainer.contract.kinds import kinds, resolve_params


@pytest.mark.parametrize("kind", ["token-parity", "cifar", "resume"])
def test_parameters_can_be_given_again(engine: Engine, settings: Settings, kind: str) -> None:
    run_id = add_run(engine, "queued", kind=kind, params={"seed": 48, "share_gpu": True})
    shown = call("show", str(run_id), data_dir=settings.data_dir).stdout
    line = next(line for line in shown.splitlines() if line.startswith("parameters: "))
    given = re.findall(r"(\w+=[^,]*)(?:, |$)", line.removeprefix("parameters: "))
    assert "seed=48" in given
    arguments = [part for pair in given for part in ("-p", pair)]
    again = call("run", kind, *arguments, "--detach", "--json", data_dir=settings.data_dir)
    assert again.returncode == 0, again.stderr
    wanted = resolve_params(kinds()[kind], "quick", {"seed": 48, "share_gpu": True})
    assert again.document["params"] == wanted.model_dump(mode="json")


def test_checks_are_pointed_to(engine: Engine, settings: Settings) -> None:
    judged = add_run(engine, "succeeded", verdict="pass", reason="completed")
    broken = add_run(engine, "failed", reason="rank_exit")
    shown = [call("show", str(run_id), data_dir=settings.data_dir) for run_id in (judged, broken)]
    assert [done.returncode for done in shown] == [0, 0]
    assert f"checks: ddp-audit result {judged}" in shown[0].stdout
    assert "checks:" not in shown[1].stdout
