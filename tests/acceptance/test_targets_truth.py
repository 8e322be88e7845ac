"""Training code of a user, registered by the setting and found on the operator's PYTHONPATH, in real runs."""

from pathlib import Path

import pytest

from tests.support.cli import Done, start

pytestmark = pytest.mark.torchrun
SHOP = Path(__file__).resolve().parents[1] / "support" / "target_path"
SPECS = "shop.train:Mine,shop.train:Waiting"


def run(data_dir: Path, name: str, **given: str) -> Done:
    arguments = ("run", "gradient-audit", "-p", f"target={name}", "--json")
    given = {"PYTHONPATH": str(SHOP), "DDP_AUDIT_TARGETS": SPECS, **given}
    process = start(*arguments, data_dir=data_dir, **given)
    out, err = process.communicate(timeout=240)
    return Done(returncode=process.returncode, stdout=out, stderr=err)


def test_registered_loop_is_audited(tmp_path: Path) -> None:
    done = run(tmp_path, "shop-loop")
    assert done.returncode == 0, done.stderr
    document = done.document
    assert (document["verdict"], document["params"]["target"]) == ("pass", "shop-loop")
    result = document["result"]
    assert result["diagnosis"]["status"] == "clean"
    assert (result["summary"]["unit"], result["params"]["steps"]) == ("token", 3)
    assert result["environment"]["data_source"] == "target shop-loop"
    weights = result["diagnosis"]["weights"]
    assert len(weights["observed"]) == 2
    for seen, right in zip(weights["observed"], weights["expected"], strict=True):
        assert seen == pytest.approx(right, rel=1e-6)


def test_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "shop-waits", DDP_AUDIT_STALL_SECONDS="3", DDP_AUDIT_HANG_SECONDS="12")
    assert done.returncode == 5, done.stderr
    document = done.document
    assert (document["state"], document["reason"]) == ("failed", "hang")
    assert (document["failure"]["rank"], document["failure"]["phase"]) == (1, "accumulate")
    assert "Rank 1 holds up the run" in document["diagnosis"]
