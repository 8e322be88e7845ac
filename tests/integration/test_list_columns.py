"""A list of runs with parameters and checks as columns: on the page, by the API and by the command."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from app.db import write_session
from app.runs.outbox import record_checks
from app.runs.results import columns as columns_module
from app.runs.results.reading import read_result
from app.settings import Settings
from tests.support.cli import Done, call
from tests.support.pages_data import HOSTILE, add_run, save_result
from tests.support.results import make_result
from tests.support.service import Service, running_service, shown
from trainer.contract.result import Check

RATE: Final = 0.30000000000000004
NAMES: Final = ("kept", "unread", "cifar", "failed", "damaged")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"), root_path="/lab")) as running:
        yield running


@pytest.fixture(scope="module")
def runs(service: Service) -> dict[str, int]:
    """Runs by name: checks stored as rows, checks only in the result, another kind, no result, a damaged one."""
    engine, ended = service.engine, {"reason": "completed", "verdict": "pass"}
    made = {
        "kept": add_run(engine, "succeeded", params={"learning_rate": RATE, "seed": 2147483647}, **ended),
        "unread": add_run(engine, "succeeded", params={"learning_rate": 0.3, "seed": 5}, **ended),
        "cifar": add_run(engine, "succeeded", kind="cifar", params={"mode": "no_sync"}, **ended),
        "failed": add_run(engine, "failed", reason="rank_exit"),
        "damaged": add_run(engine, "succeeded", **ended),
    }
    checks = [
        Check(name="gradient_parity", title=HOSTILE, passed=False, measured=0.25, limit=1e-6, unit="nats"),
        Check(name="odd <b>", title="Odd", passed=None, measured="NaN", limit=None),
        Check(name="worked_example", title="Worked", passed=True, measured=18, limit=18),
    ]
    with write_session(engine) as session:
        record_checks(session, made["kept"], "token-parity", checks)
        record_checks(session, made["cifar"], "cifar", [])
    save_result(service.settings, made["kept"], make_result())  # differs from the rows: the file must not be read
    save_result(service.settings, made["unread"], make_result())
    save_result(service.settings, made["damaged"], make_result())
    (service.settings.runs_dir / str(made["damaged"]) / "result.json").write_text("{")
    return made


def listed(service: Service, *columns: str, **query: Any) -> dict[str, dict[str, Any]]:
    """Return the columns of each run by its name."""
    answer = service.get("/runs", params={"col": columns, "sort": "oldest", **query})
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    return {name: item["columns"] for name, item in zip(NAMES, items, strict=True)}


def test_parameters_keep_every_digit_and_their_type(service: Service, runs: dict[str, int]) -> None:
    found = listed(service, "param:learning_rate", "param:seed", "param:mode", "param:share_gpu")
    assert found["kept"] == {"param:learning_rate": RATE, "param:seed": 2147483647, "param:share_gpu": False}
    assert found["unread"]["param:learning_rate"] == 0.3
    assert (found["cifar"]["param:mode"], "param:mode" in found["kept"]) == ("no_sync", False)
    assert found["failed"]["param:share_gpu"] is False  # a run has parameters, however it ended


def test_check_of_a_row_or_of_the_result(service: Service, runs: dict[str, int]) -> None:
    found = listed(service, "check:gradient_parity", "check:odd <b>")
    kept, unread = found["kept"]["check:gradient_parity"], found["unread"]["check:gradient_parity"]
    assert kept == {
        "name": "gradient_parity", "title": HOSTILE, "passed": False, "measured": 0.25, "limit": 1e-6,
        "relation": "at_most", "strict": False, "unit": "nats",
    }  # fmt: skip
    assert (unread["passed"], unread["measured"], unread["limit"]) == (True, 2.98e-8, 1e-6)
    assert found["kept"]["check:odd <b>"]["measured"] == "NaN"
    assert [found[name] for name in ("cifar", "failed", "damaged")] == [{}, {}, {}]


def test_main_check_is_the_same_beside_others(service: Service, runs: dict[str, int]) -> None:
    alone = {name: values.get("check") for name, values in listed(service, "check").items()}
    beside = listed(service, "check:worked_example", "check", "param:seed")
    assert {name: values.get("check") for name, values in beside.items()} == alone
    assert {name: check and check["name"] for name, check in alone.items()} == {
        "kept": "gradient_parity", "unread": "gradient_parity", "cifar": None, "failed": None, "damaged": None,
    }  # fmt: skip
    assert beside["unread"]["check:worked_example"]["passed"] is True
    assert set(beside["cifar"]) == {"param:seed"}


def test_list_without_columns_is_as_before(service: Service, runs: dict[str, int]) -> None:
    plain = service.get("/runs").json()
    with_columns = service.get("/runs", params={"col": "param:seed"}).json()
    assert all("columns" not in item for item in plain["items"])
    stripped = [{name: value for name, value in item.items() if name != "columns"} for item in with_columns["items"]]
    assert stripped == plain["items"]


def test_pages_go_on_with_columns(service: Service, runs: dict[str, int]) -> None:
    query = {"col": ["param:seed"], "limit": 2, "sort": "oldest"}
    found: list[tuple[int, int]] = []
    cursor = None
    while cursor or not found:
        page = service.get("/runs", params=query | ({"cursor": cursor} if cursor else {})).json()
        found += [(item["id"], item["columns"]["param:seed"]) for item in page["items"]]
        cursor = page["next_cursor"]
    assert [number for number, _ in found] == list(runs.values())
    assert [seed for _, seed in found][:2] == [2147483647, 5]


@pytest.mark.parametrize(
    "text", ["seed", "param:", "check: x", "verdict", "params:seed", "param:a\nb", f"param:{'x' * 121}", ""]
)
def test_what_is_no_column_is_refused(service: Service, text: str) -> None:
    answer = service.get("/runs", params={"col": ["param:seed", text]})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "col"
    assert "write check, check:NAME or param:NAME" in answer.json()["detail"]


def test_columns_are_limited(service: Service) -> None:
    assert service.get("/runs", params={"col": [f"param:{number}" for number in range(20)]}).status_code == 200
    assert service.get("/runs", params={"col": [f"param:{number}" for number in range(21)]}).status_code == 422


def test_results_are_opened_where_no_row_is_kept(
    service: Service, runs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def noted(runs_dir: Any, run_id: int) -> Any:
        opened.append(run_id)
        return read_result(runs_dir, run_id)

    monkeypatch.setattr(columns_module, "read_result", noted)
    listed(service, "check", "check:gradient_parity", "check:worked_example", "param:seed")
    assert sorted(opened) == [runs["unread"], runs["damaged"]]  # each once, however often requested
    opened.clear()
    listed(service, "check:nobody_has_it")
    assert sorted(opened) == [runs["unread"], runs["damaged"]]
    opened.clear()
    listed(service, "param:seed")
    service.get("/runs")
    assert opened == []


def cells(text: str, run_id: int) -> list[str]:
    """Return the text of the cells of a run's row, without tags and repeated spaces."""
    row = text.split(f'<tr id="run-{run_id}"')[1].split("</tr>", maxsplit=1)[0]
    found = re.findall(r"<td(?! class=\"tick\")[^>]*>(.*?)</td>", row, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", cell).replace(" ,", ",").split()) for cell in found]


@pytest.mark.parametrize("path", ["/runs", "/runs/rows"])
def test_page_shows_them(service: Service, runs: dict[str, int], path: str) -> None:
    query = "col=param%3Alearning_rate&col=kind&col=check%3Agradient_parity&col=param%3Amode"
    text = shown(service.http, f"{path}?{query}")
    assert cells(text, runs["kept"]) == [
        "token-parity quick", "0.30000000000000004", "0.25 nats, at most 1e-6 ✗ fail", "–",
    ]  # fmt: skip
    assert cells(text, runs["unread"])[1:] == ["0.3", "2.98e-8, at most 1e-6 ✓ pass", "–"]
    assert cells(text, runs["cifar"])[2:] == ["–", "no_sync"]
    assert cells(text, runs["failed"])[2] == cells(text, runs["damaged"])[2] == "–"


def test_page_keeps_them_in_its_addresses(service: Service, runs: dict[str, int]) -> None:
    text = shown(service.http, "/runs?col=kind&col=param%3Aseed&col=check%3Aodd+%3Cb%3E&sort=oldest")
    headings = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', text)
    assert [" ".join(re.sub(r"<[^>]+>", " ", heading).split()) for heading in headings] == [
        "Run", "Kind", "parameter seed", "check odd &lt;b&gt;",
    ]  # fmt: skip
    kept = "col=kind&amp;col=param%3Aseed&amp;col=check%3Aodd+%3Cb%3E"
    assert re.search(rf'hx-get="/lab/runs/rows\?[^"]*{re.escape(kept)}', text)
    assert 'name="col" value="param:seed" checked' in text  # and can be removed again
    assert "odd <b>" not in text
    offered = re.findall(r'<option value="((?:param|check):[^"]*)"', text)
    assert {"param:learning_rate", "param:mode", "check:gradient_parity"} <= set(offered)
    assert "param:seed" not in offered


def test_page_says_what_is_no_column(service: Service, runs: dict[str, int]) -> None:
    wrong = shown(service.http, "/runs?col=kind&col=%3Cseed%3E&col=")
    assert "There is no column &lt;seed&gt;: write param: or check: and a name" in wrong
    assert "There is no column" not in shown(service.http, "/runs?col=kind&col=param%3Aseed&col=")


def ask(service: Service, *arguments: str) -> Done:
    return call("list", "--sort", "oldest", *arguments, data_dir=service.settings.data_dir)


def test_command_shows_them(service: Service, runs: dict[str, int]) -> None:
    asked = ["--column", "param:learning_rate", "--column", "check:gradient_parity", "--column", "check"]
    done = ask(service, *asked)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.split(r"  +", lines[0].strip())[-3:] == ["param:learning_rate", "check:gradient_parity", "check"]
    kept, unread, cifar = (re.split(r"  +", line.strip()) for line in lines[2:5])
    assert kept[-3:-1] == ["0.30000000000000004", "FAIL 0.25 nats (at most 1e-06)"]
    assert kept[-1].startswith("<img")
    assert unread[-3:-1] == ["0.3", "pass 2.98e-08 (at most 1e-06)"]
    assert cifar[-2:] == ["-", "-"]
    asked[1] = "param:seed"
    document = ask(service, *asked, "--json").document
    assert document["items"] == service.get("/runs", params={"sort": "oldest", "col": asked[1::2]}).json()["items"]


def test_command_refuses_what_is_no_column(service: Service) -> None:
    done = ask(service, "--column", "seed")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'seed' is not a valid column: write check, check:NAME or param:NAME" in done.stderr


def test_command_without_columns_is_as_before(service: Service, runs: dict[str, int]) -> None:
    assert ask(service).stdout.splitlines()[0].split() == ["id", "name", "kind", "state", "verdict", "created", "took"]
