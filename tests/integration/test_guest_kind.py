"""A kind from a separate distribution is first class: pages, API, worker, classifier and every command support it."""

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.guest import House, open_house
from tests.support.pictures import encoded

pytestmark = pytest.mark.torchrun


def stripes(direction: int) -> bytes:
    """Return a picture of stripes that the guest never saw: twice as large, different colours."""
    image = Image.new("RGB", (64, 64))
    for row in range(64):
        for column in range(64):
            way = (row, column, row + column)[direction]
            image.putpixel((column, row), (190, 180, 170) if way // 8 % 2 else (10, 0, 5))
    return encoded(image)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("house")) as opened:
        yield opened


@pytest.fixture(scope="module")
def greeting(house: House) -> str:
    """The first page, seen before there was any run."""
    return house.page("/")


@pytest.fixture(scope="module")
def runs(house: House, greeting: str) -> dict[str, Any]:
    """One run per way to start one: the first page, the form, the API; and one that fails."""
    quick = house.started(house.http.post("/quick", data={"kind": "stripes"}))
    form = {"kind": "stripes", "preset": "quick", "param.width": "8", "name": "narrow", "tags": "guest"}
    narrow = house.started(house.http.post("/launch", data=form))
    refused = house.http.post("/api/v1/runs", json={"kind": "stripes", "params": {"permit": False}}).json()["id"]
    ids = {"quick": quick, "narrow": narrow, "refused": refused}
    found = {name: house.ended(run_id) for name, run_id in ids.items()}
    again = house.http.post(f"/api/v1/runs/{quick}/retry").json()["id"]
    return {**found, "again": house.ended(again)}


def test_first_page_offers_it_after_the_products_own(greeting: str) -> None:
    own = greeting.index('name="kind" value="token-parity"')
    assert own < greeting.index("The quick audit of stripes fits a small network on two ranks")
    assert "Run the quick audit of stripes" in greeting


def test_catalogue_lists_it(house: House) -> None:
    found = next(item for item in house.api("/kinds")["items"] if item["name"] == "stripes")
    assert found["presets"]["stored"]["data"] == "stripes-stored"
    assert found["schema"]["properties"]["width"]["maximum"] == 256
    assert "stripes" in house.api("/../../readyz")["workers"][0]["kinds"]
    assert "--preset stored: Stored stripes" in house.command("kinds").stdout


def test_form_comes_from_its_schema(house: House) -> None:
    page = house.page("/launch?kind=stripes")
    assert 'name="param.width"' in page
    assert "Units of the hidden layer." in page
    refused = house.http.post("/launch", data={"kind": "stripes", "preset": "quick", "param.width": "257"})
    assert refused.status_code == 422
    assert "257" in refused.text
    assert "<h1>Launch a run</h1>" in house.page("/launch")
    assert "token counts" in house.page("/launch")  # before a kind is chosen, the product's own kind is shown


@pytest.mark.parametrize("name", ["quick", "narrow", "again"])
def test_runs_end_with_a_verdict(runs: dict[str, Any], name: str) -> None:
    run = runs[name]
    assert (run["kind"], run["state"], run["verdict"]) == ("stripes", "succeeded", "pass"), run["diagnosis"]
    assert [(stage["name"], stage["state"]) for stage in run["stages"]] == [
        ("fit", "succeeded"),
        ("judge", "succeeded"),
    ]


def test_parameters_and_retry_are_its_own(runs: dict[str, Any]) -> None:
    assert (runs["narrow"]["params"]["width"], runs["narrow"]["tags"]) == (8, ["guest"])
    assert (runs["again"]["retry_of"], runs["again"]["params"]) == (runs["quick"]["id"], runs["quick"]["params"])
    assert runs["narrow"]["reproduce"] == "ddp-audit run stripes --preset quick -p width=8"


def test_its_exception_has_the_reason_it_named(house: House, runs: dict[str, Any]) -> None:
    run = runs["refused"]
    assert (run["state"], run["reason"]) == ("failed", "launch_error")
    assert "PermitMissing: no permit was given; pass permit=true" in run["diagnosis"]
    assert "launch error" in house.page(f"/runs/{run['id']}")


def test_run_page_shows_its_checks_and_chart(house: House, runs: dict[str, Any]) -> None:
    page = house.page(f"/runs/{runs['quick']['id']}")
    assert "All ranks agree" in page
    assert "Loss of the stripes" in page
    assert "Stripes only." in page
    # It names the table of digests; without a headline the page would begin with the chart.
    assert "<h3>Digests</h3>" in page.split('id="run-lead"')[1].split('id="stages"')[0]


def test_list_row_has_its_headline(house: House, runs: dict[str, Any]) -> None:
    rows = house.page("/runs?col=kind&col=check&kind=stripes").split('<tr id="run-')[1:]
    titles = {int(row.split('"')[0]): "All ranks agree" in row for row in rows}
    assert titles == {run["id"]: run["verdict"] == "pass" for run in runs.values()}
    assert not any("The last loss is small" in row for row in rows)


def test_trend_begins_with_its_choice(house: House, runs: dict[str, Any]) -> None:
    page = house.page("/trends?kind=stripes")
    assert "<h2>The last loss is small</h2>" in page
    assert "<h2>All ranks agree</h2>" in house.page("/trends?kind=stripes&check=same_weights")
    found = house.api("/trends?kind=stripes&check=last_loss")
    assert [item["run_id"] for item in found["items"]] == [runs[name]["id"] for name in ("quick", "narrow", "again")]
    assert "<option selected>token-parity</option>" in house.page("/trends")


def test_its_verifier_judges_again(house: House, runs: dict[str, Any]) -> None:
    run_id = runs["narrow"]["id"]
    sound = house.command("verify", str(run_id), "--json")
    assert (sound.returncode, sound.document["pass_line"]) == (
        0,
        "PASS stripes: 2 checks follow from the history again",
    )
    history = house.data_dir / "runs" / str(run_id) / "artifacts" / "fit" / "history.json"
    text = history.read_text()
    document = json.loads(text)
    document["digests"][1] = "0" * 64
    history.write_text(json.dumps(document))
    broken = house.command("verify", str(run_id), "--json")
    history.write_text(text)
    assert (broken.returncode, broken.document["problems"]) == (1, ["same_weights is other than stored"])


def test_figures_draw_its_chart(house: House, runs: dict[str, Any]) -> None:
    done = house.command("figures", str(runs["quick"]["id"]), "--json", local=True)
    assert done.returncode == 0, done.stderr
    drawn = [Path(path) for path in done.document["items"]]
    assert {path.suffix for path in drawn} == {".svg", ".png"}
    assert "Loss of the stripes" in next(path for path in drawn if path.suffix == ".svg").read_text()
    paths = [item["path"] for item in house.api(f"/runs/{runs['quick']['id']}/artifacts")["items"]]
    assert {f"figures/{path.name}" for path in drawn} <= set(paths)


def test_export_badge_junit_and_comparison(house: House, runs: dict[str, Any]) -> None:
    ids = [runs[name]["id"] for name in ("quick", "narrow")]
    exported = house.http.get(f"/api/v1/runs/{ids[0]}/export", params={"format": "csv"})
    assert {row["key"] for row in csv.DictReader(io.StringIO(exported.text))} >= {"loss"}
    assert "stripes: pass" in house.http.get("/api/v1/badge/stripes.svg").text
    assert "same_weights" in house.http.get(f"/api/v1/runs/{ids[0]}/junit").text
    compared = house.api(f"/compare?ids={ids[0]},{ids[1]}")
    assert "width" in json.dumps(compared)
    assert "All ranks agree" in house.page(f"/compare?ids={ids[0]},{ids[1]}")


def test_its_data_is_acquired_and_tidied(house: House, runs: dict[str, Any]) -> None:
    wanted = {"kind": "stripes", "preset": "stored"}
    refused = house.http.post("/api/v1/runs", json=wanted)
    assert refused.status_code == 422
    assert "run `ddp-audit acquire stripes-stored`" in refused.text
    assert "<code>ddp-audit acquire stripes-stored</code> downloads 3 stored stripes" in house.page("/storage")
    of_kind = house.command("acquire", "stripes", "--json", local=True).document["text"]
    assert "`acquire stripes-stored` gets the data of preset stored" in of_kind
    assert "drawn" in house.command("acquire", "stripes-drawn", local=True).stdout
    acquired = house.command("acquire", "stripes-stored", "--json", local=True)
    assert (acquired.returncode, acquired.document["ok"]) == (0, True)
    assert house.ended(house.http.post("/api/v1/runs", json=wanted).json()["id"])["verdict"] == "pass"
    cleaned = house.command("clean", "--scope", "datasets", "--yes", "--json", local=True)
    assert [item["path"] for item in cleaned.document["items"]] == ["datasets/stripes-stored"]
    unknown = house.command("acquire", "stripes-unheard-of", local=True)
    assert unknown.returncode == 2
    assert "stripes-drawn, stripes-stored" in unknown.stderr


@pytest.mark.parametrize("direction", range(3))
def test_its_model_answers(house: House, runs: dict[str, Any], direction: int) -> None:
    sent = {"file": ("a.png", stripes(direction), "image/png")}
    by_run = house.http.post(f"/api/v1/runs/{runs['narrow']['id']}/predict", files=sent)
    assert by_run.status_code == 200, by_run.text
    found = by_run.json()
    assert found["class"] == ("across", "down", "slanted")[direction]
    newest = house.http.post("/api/v1/predict", files=sent).json()
    assert newest["run_id"] > runs["narrow"]["id"]
    assert newest["class"] == found["class"]


def test_page_and_command_use_its_model(house: House, runs: dict[str, Any], tmp_path: Path) -> None:
    page = house.page(f"/classify?run={runs['narrow']['id']}")
    assert "narrow (8 wide)</option>" in page
    picture = tmp_path / "a.png"
    picture.write_bytes(stripes(1))
    answered = house.command("predict", str(picture), "--run", str(runs["quick"]["id"]), "--json")
    assert (answered.returncode, answered.document["class"]) == (0, "down")
    model = house.data_dir / "runs" / str(runs["narrow"]["id"]) / "artifacts" / "fit" / "model.pt"
    by_file = house.command("predict", str(picture), "--checkpoint", str(model), "--json", local=True)
    assert (by_file.returncode, by_file.document["class"]) == (0, "down")


def test_model_without_its_kind_is_refused(house: House, runs: dict[str, Any], tmp_path: Path) -> None:
    """If the distribution is not installed, nothing of it is imported, whatever the file says."""
    from tests.support.cli import call

    picture = tmp_path / "a.png"
    picture.write_bytes(stripes(1))
    model = house.data_dir / "runs" / str(runs["narrow"]["id"]) / "artifacts" / "fit" / "model.pt"
    assert "stripes" not in os.environ.get("PYTHONPATH", "")
    done = call("predict", str(picture), "--checkpoint", str(model), data_dir=house.data_dir)
    assert done.returncode == 2
    assert "the weights do not fit this model" in done.stderr


def test_other_pages_are_as_before(house: House, runs: dict[str, Any]) -> None:
    for path in ("/explain", "/status", "/storage", "/compare", "/runs?kind=stripes"):
        assert "</html>" in house.page(path)
    assert house.http.get("/openapi.json").json()["paths"]
