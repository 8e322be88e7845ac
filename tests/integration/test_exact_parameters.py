"""Names, tags and parameters read back unchanged wherever they are shown: no digit lost, no text reinterpreted."""

import csv
import html
import io
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

import pytest
from sqlalchemy import update
from sqlmodel import col

from app.db import write_session
from app.formats import read_back
from app.runs.models import Run
from app.settings import Settings
from tests.support.cli import Done, call
from tests.support.pages_data import add_run, save_result
from tests.support.results import make_result
from tests.support.service import Service, running_service

HTML = {"Accept": "text/html"}
FIELD: Final = re.compile(r'<input[^>]* name="([\w.]+)"[^>]* value="([^"]*)"')
NAME: Final = "80e5005"
TAGS: Final = ["007", "1e5", "NaN", "null", "true"]
GIVEN: Final[dict[str, Any]] = {"learning_rate": 0.30000000000000004, "atol": 1e-12, "seed": 2147483647}
TEXTS: Final = {"learning_rate": "0.30000000000000004", "atol": "1e-12", "seed": "2147483647"}
OTHER: Final = {"learning_rate": "0.3", "atol": "1e-06", "seed": "2147483646"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def ask(service: Service, *arguments: str) -> Done:
    return call(*arguments, data_dir=service.settings.data_dir)


@pytest.fixture(scope="module")
def ids(service: Service) -> tuple[int, int]:
    """A run recorded by the command, and one whose numbers differ from it in the last digit."""
    options = [part for pair in TEXTS.items() for part in ("-p", "=".join(pair))]
    tags = [part for tag in TAGS for part in ("--tag", tag)]
    first = ask(service, "run", "token-parity", "--name", NAME, *tags, *options, "--detach", "--json")
    assert first.returncode == 0, first.stderr
    near = {"learning_rate": 0.3, "seed": 2147483646}
    return first.document["id"], service.post("/runs", {"kind": "token-parity", "params": near}).json()["id"]


@pytest.fixture(autouse=True)
def only_these(service: Service, ids: tuple[int, int]) -> Iterator[None]:
    """Remove what a test adds, so that the tests can run in any order."""
    yield
    for item in service.get("/runs", params={"limit": 100}).json()["items"]:
        if item["id"] not in ids:
            service.post(f"/runs/{item['id']}/cancel")
            assert service.http.delete(f"/api/v1/runs/{item['id']}").status_code == 204


def test_name_and_tags_stay_text(service: Service, ids: tuple[int, int]) -> None:
    run = service.get(f"/runs/{ids[0]}").json()
    assert (run["name"], run["tags"]) == (NAME, TAGS)
    for tag in TAGS:
        assert [item["id"] for item in service.get("/runs", params={"tag": tag}).json()["items"]] == [ids[0]]
    assert service.get("/runs", params={"tag": "100000"}).json()["items"] == []  # 1e5 is a text here
    row = next(csv.DictReader(io.StringIO(service.get("/runs/export?format=csv&q=80e5005").text)))
    assert (row["name"], row["tags"]) == (NAME, "007, 1e5, NaN, null, true")


def test_every_digit_comes_back(service: Service, ids: tuple[int, int]) -> None:
    run = service.get(f"/runs/{ids[0]}").json()
    row = next(csv.DictReader(io.StringIO(service.get("/runs/export?format=csv&q=80e5005").text)))
    exported = service.get("/runs/export?format=json&q=80e5005").json()["items"][0]
    for params in (run["params"], json.loads(row["params"]), exported["params"]):
        assert {name: params[name] for name in GIVEN} == GIVEN
        assert type(params["seed"]) is int
    page = service.http.get(f"/runs/{ids[0]}", headers=HTML).text
    shown = ask(service, "show", str(ids[0])).stdout
    for name, text in TEXTS.items():
        assert f"<dt>{name}</dt><dd>{text}</dd>" in page
        assert f"{name}={text}" in shown
        assert f"-p {name}={text}" in run["reproduce"]


def test_reproduced_run_is_the_same(service: Service, ids: tuple[int, int]) -> None:
    words = shlex.split(service.get(f"/runs/{ids[0]}").json()["reproduce"])
    again = ask(service, *words[1:], "--detach", "--json").document
    assert again["params"] == service.get(f"/runs/{ids[0]}").json()["params"]


def test_form_launches_the_same(service: Service, ids: tuple[int, int]) -> None:
    page = service.http.get(f"/launch?like={ids[0]}", headers=HTML).text
    fields = {name: html.unescape(value) for name, value in FIELD.findall(page)}
    for name, text in TEXTS.items():
        assert fields[f"param.{name}"] == text
    sent = service.http.post("/launch", data=fields | {"kind": "token-parity", "preset": "quick"}, headers=HTML)
    again = service.get(f"/runs/{sent.headers['location'].rsplit('/', 1)[1]}").json()
    before = service.get(f"/runs/{ids[0]}").json()
    assert {name: again[name] for name in ("name", "tags", "params")} == {
        name: before[name] for name in ("name", "tags", "params")
    }
    assert "(at least 0, at most 2147483647)" in page  # a limit can be given too


def test_comparison_hides_no_digit(service: Service, ids: tuple[int, int]) -> None:
    both = ",".join(map(str, ids))
    page = service.http.get(f"/compare?ids={both}", headers=HTML).text
    command = [line.split() for line in ask(service, "compare", *map(str, ids)).stdout.splitlines()]
    for name, text in TEXTS.items():
        row = f'<th scope="row" class="wrap">{name}</th><td class="wrap">{text}</td><td class="wrap">{OTHER[name]}</td>'
        assert row in page
        assert f"| {name} | {text} | {OTHER[name]} |" in page  # Markdown
        assert [name, text, OTHER[name]] in command
    equal = '<th scope="row" class="wrap">share_gpu</th><td class="wrap">false</td>'
    assert equal in page


def test_results_that_differ_read_differently(service: Service) -> None:
    runs = []
    for error in (1.0000001e-7, 1.0000002e-7, 1.0000001e-7):
        run_id = add_run(service.engine, "succeeded", verdict="pass", reason="completed")
        save_result(service.settings, run_id, make_result(error=error))
        runs.append(str(run_id))
    page = service.http.get(f"/compare?ids={','.join(runs[:2])}", headers=HTML).text
    command = ask(service, "compare", *runs[:2]).stdout
    for text in ("1.0000001e-07", "1.0000002e-07"):
        assert page.count(text) >= 3  # check, summary, Markdown
        assert command.count(text) == 2
    alike = service.http.get(f"/compare?ids={runs[0]},{runs[2]}", headers=HTML).text
    assert "1.0000001e-07" not in alike  # nothing to distinguish
    assert "1e-7" in alike


def test_limit_just_missed_is_told(service: Service) -> None:
    run_id = add_run(service.engine, "succeeded", verdict="fail", reason="completed")
    save_result(service.settings, run_id, make_result(error=1.0000001e-6))  # the limit is 1e-6
    page = service.http.get(f"/runs/{run_id}", headers=HTML).text
    assert page.count("1.0000001e-06") >= 3  # deciding check, table of checks, Markdown
    assert "1.0000001e-06" in ask(service, "result", str(run_id)).stdout


@pytest.mark.parametrize("value", ["true", "007", "1e5", "null", '"a"', " 5", "[1]", "NaN", "ordinary", "a=b, c", ""])
def test_odd_text_reads_back(service: Service, value: str) -> None:
    """A third-party kind may accept any text: the run's page and `reproduce` must give the same value again."""
    run_id = add_run(service.engine, "queued")
    with write_session(service.engine) as session:
        session.execute(update(Run).where(col(Run.id) == run_id).values(params={"world_size": 2, "label": value}))
    words = shlex.split(service.get(f"/runs/{run_id}").json()["reproduce"])
    assert read_back(next(word for word in words if word.startswith("label=")).removeprefix("label=")) == value
    shown = re.search(r"<dt>label</dt><dd>(.*?)</dd>", service.http.get(f"/runs/{run_id}", headers=HTML).text)
    assert shown is not None
    assert read_back(html.unescape(shown[1])) == value
