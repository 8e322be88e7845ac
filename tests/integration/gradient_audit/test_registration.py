"""Registered targets: listed by a separate process, chosen by name, refused by field; problems are shown."""

import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path

import pytest

from app.runs import targets as module
from app.runs.targets import Catalogue, catalogue_of
from app.settings import Settings
from tests.support.cli import call
from tests.support.service import Service, running_service, shown
from trainer.contract.targets import BUILT_IN

SHOP = Path(__file__).resolve().parents[2] / "support" / "target_path"
SPECS = "shop.train:Mine,shop.train:Lacking,shop.train:Nameless,shop.train:Taken,shop.gone:Target,shop.train:Absent"
ENOUGH = 120.0
"""Seconds in which a listing is done on any machine."""


@pytest.fixture(scope="module")
def path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SHOP), os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture(scope="module")
def service(path: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("shop"), targets=SPECS)) as running:
        yield running


def test_list_says_what_can_be_used_and_what_cannot(service: Service) -> None:
    items = service.get("/targets").json()["items"]
    assert [item["name"] for item in items if not item["problem"]] == ["shop-loop", *BUILT_IN]
    assert items[0]["title"] == "The loop of the shop."
    problems = {item["spec"].partition(":")[2] or item["spec"]: item["problem"] for item in items if item["problem"]}
    assert problems["Lacking"].startswith("lacks window, loss_sum, count, accumulate")
    assert "name must be text" in problems["Nameless"]
    assert "belongs to a shipped example" in problems["Taken"]
    assert "cannot be imported: ModuleNotFoundError: No module named 'shop.gone'" in problems["Target"]
    assert "has no attribute 'Absent'" in problems["Absent"]


def test_form_offers_targets_and_shows_problems(service: Service) -> None:
    page = shown(service.http, "/launch?kind=gradient-audit")
    assert '<select id="in-target" name="param.target"' in page
    assert '<option value="shop-loop">' in page
    assert '<option value="causal-lm">' in page
    assert '<option value="shop-lacks">' not in page
    assert page.index('id="in-target"') < page.index('id="in-device"')
    assert "No module named &#39;shop.gone&#39;" in page


def test_other_forms_have_no_targets(service: Service) -> None:
    assert "Your own training code" not in shown(service.http, "/launch?kind=token-parity")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shop-lacks", "cannot be used: lacks window"),
        ("nothing", "'nothing' is not registered; registered: shop-loop, causal-lm"),
        ("shop.train:Mine", "must be the name of a registered target"),
        ("../../x", "must be the name of a registered target"),
        ("", "must be the name of a registered target"),
    ],
)
def test_run_of_an_unusable_target_is_refused_by_its_field(service: Service, name: str, told: str) -> None:
    answer = service.post("/runs", {"kind": "gradient-audit", "params": {"target": name}})
    assert answer.status_code == 422
    assert [item["field"] for item in answer.json()["errors"]] == ["target"]
    assert told in answer.json()["errors"][0]["message"]


def test_form_keeps_the_refused_name_beside_its_error(service: Service) -> None:
    form = {"kind": "gradient-audit", "preset": "quick", "param.target": "shop-lacks"}
    answer = service.http.post("/launch", data=form)
    assert answer.status_code == 422
    assert "<option selected>shop-lacks</option>" in answer.text
    assert "cannot be used: lacks window" in answer.text


def test_usable_target_is_queued_by_form_and_api(service: Service) -> None:
    assert service.post("/runs", {"kind": "gradient-audit", "params": {"target": "shop-loop"}}).status_code == 201
    form = {"kind": "gradient-audit", "preset": "quick", "param.target": "zero"}
    assert service.http.post("/launch", data=form, follow_redirects=False).status_code == 303


def test_check_calls_every_member(service: Service) -> None:
    document = service.post("/targets/shop-loop/check", {"ranks": 3}).json()
    assert document["ok"] is True
    members = {item["member"] for item in document["members"]}
    assert {"build_model", "window", "count", "loss_sum", "accumulate"} <= members
    counts = next(item["text"] for item in document["members"] if item["member"] == "count")
    assert counts.count("rank") == 3


def test_check_of_unusable_and_unknown_targets(service: Service) -> None:
    lacking = service.post("/targets/shop-lacks/check", {}).json()
    assert (lacking["ok"], lacking["members"][0]["text"][:12]) == (False, "lacks window")
    unknown = service.post("/targets/nothing/check", {})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_target")
    assert service.post("/targets/zero/check", {"ranks": 1}).status_code == 422


def test_service_imports_no_target(service: Service) -> None:
    assert service.get("/targets").json()["items"][0]["name"] == "shop-loop"
    assert "shop.train" not in sys.modules


def test_command_lists_and_checks(path: None, tmp_path: Path) -> None:
    listed = call("targets", data_dir=tmp_path, DDP_AUDIT_TARGETS=SPECS)
    assert listed.returncode == 1  # some cannot be used
    assert "shop-loop" in listed.stdout
    assert "No module named 'shop.gone'" in listed.stdout
    assert call("targets", data_dir=tmp_path).returncode == 0
    checked = call("targets", "shop-loop", "--json", data_dir=tmp_path, DDP_AUDIT_TARGETS=SPECS)
    assert (checked.returncode, checked.document["ok"]) == (0, True)
    assert call("targets", "nothing", data_dir=tmp_path).returncode == 6


def test_two_targets_of_one_name_are_both_refused(path: None) -> None:
    entries = Catalogue("shop.train:Mine,shop.train:twin").entries(ENOUGH)
    assert [entry.problem for entry in entries[:2]] == ["2 targets are called 'shop-loop': rename"] * 2


def test_mended_file_is_listed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = tmp_path / "mending.py"
    file.write_text("raise ImportError('no licence')\n")
    catalogue = Catalogue("mending:Target")
    assert "cannot be imported: ImportError: no licence" in catalogue.entries(ENOUGH)[0].problem
    file.write_text(
        "from trainer.targets.examples.images import ImageClassifier\n"
        "class Target(ImageClassifier):\n    name = 'mended'\n"
    )
    os.utime(file, (time.time() + 5, time.time() + 5))
    assert catalogue.names(ENOUGH)[0] == "mended"


def test_import_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "LIST_SECONDS", 3.0)
    (tmp_path / "hanging.py").write_text("import time\nwhile True: time.sleep(1)\n")
    catalogue = Catalogue("hanging:Target")
    assert "still being imported" in catalogue.entries(patience=0.0)[0].problem
    assert catalogue.entries(patience=60.0)[0].problem == "importing it took longer than 3 seconds and was ended"


def test_import_that_ends_the_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "killing.py").write_text("import os\nos._exit(4)\n")
    assert "SystemExit" in Catalogue("leaving:Target").entries(ENOUGH)[0].problem
    killed, good = Catalogue("killing:Target,trainer.targets.examples.small_models:Taken").entries(ENOUGH)[:2]
    assert "ended with 4" in killed.problem
    assert "has no attribute 'Taken'" in good.problem  # the others are still looked at


def install_goods(site: Path) -> None:
    info = site / "goods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: goods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ddp_audit.targets]\ngoods = shop.train:Mine\n")


def test_entry_points_are_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_goods(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{SHOP}")
    monkeypatch.syspath_prepend(tmp_path)
    entry = Catalogue("").entries(ENOUGH)[0]
    assert (entry.name, entry.origin, entry.problem) == ("shop-loop", "entry point", "")


def test_distributions_are_read_when_one_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(tmp_path, (1, 1))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{SHOP}")
    monkeypatch.syspath_prepend(tmp_path)
    readings: list[str] = []

    def counted(group: str) -> EntryPoints:
        readings.append(group)
        return entry_points(group=group)

    monkeypatch.setattr(module, "entry_points", counted)
    catalogue = Catalogue("")
    assert [catalogue.names() for _ in range(3)] == [list(BUILT_IN)] * 3
    assert len(readings) == 1  # a worker asks at every heartbeat
    install_goods(tmp_path)
    assert catalogue.names()[0] == "shop-loop"
    assert len(readings) == 2


def test_without_targets_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_program", lambda *_: pytest.fail("a process was started"))
    assert [entry.name for entry in Catalogue("").entries()] == list(BUILT_IN)
    assert catalogue_of("") is catalogue_of("")


@pytest.mark.parametrize("text", ["shop", "shop.train", "/tmp/x.py:Target", "shop.train:", "a b:C"])
def test_setting_that_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not package\.module:Object"):
        Settings(data_dir=tmp_path, targets=text)
