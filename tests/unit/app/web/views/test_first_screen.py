"""The first screen of a run's page: the headline panel, the decisive checks, and the current activity."""

from typing import Any, TypeVar

import pytest

from app.documents import Document
from app.runs.documents import CurrentProgress, Move, Progress, Rank, RunDocument, Stage
from app.web.views.answer import activity, deciding_checks, lead_panel, planned_stages
from app.web.views.panels import panel_views
from tests.support.results import every_panel, make_result
from trainer.contract.kinds import kinds, resolve_params

Made = TypeVar("Made", bound=Document)


def check(name: str, passed: bool | None, measured: Any = 1, limit: Any = 2) -> dict[str, Any]:
    return {"name": name, "passed": passed, "measured": measured, "limit": limit}


def names(checks: list[dict[str, Any]], *telling: str) -> list[str]:
    return [item["name"] for item in deciding_checks(checks, telling)]


@pytest.mark.parametrize(
    ("headline", "shown", "lead"),
    [("Tokens", slice(None), "Tokens"), (None, slice(None), "Absolute errors"), (None, slice(1), "Error per tensor")],
)
def test_page_begins_with_named_panel_or_first_picture(headline: str | None, shown: slice, lead: str) -> None:
    result = {**make_result(panels=every_panel()[shown]).model_dump(mode="json"), "headline": headline}
    found = lead_panel(result, panel_views(result["panels"]))
    assert found is not None
    assert found.data["title"] == lead


def test_result_without_panels_has_no_lead() -> None:
    assert lead_panel(make_result().model_dump(mode="json"), []) is None


def test_trouble_decides_and_control_comes_first() -> None:
    checks = [check("a", True), check("b", False), check("c", None), check("control", None)]
    assert names(checks) == ["control", "b", "c"]


def test_of_passed_checks_the_tightest_decide() -> None:
    checks = [check("far", True, 0.1, 10), check("near", True, 9, 10), check("none", True, None, None)]
    assert names([*checks, check("told", True, 0, 1)], "told") == ["told", "near", "far"]
    equal, above = (
        {**check("equal", True, 5, 5), "relation": "equal"},
        {**check("above", True, 4, 2), "relation": "at_least"},
    )
    assert names([equal, *checks, above]) == ["near", "above", "far"]  # an equal number cannot be nearer


def made(model: type[Made], **fields: Any) -> Made:
    """Return a document with only the fields that matter here."""
    construct: Any = model.model_construct
    found: Made = construct(**fields)
    return found


def run(state: str, **given: Any) -> RunDocument:
    params = resolve_params(kinds()["token-parity"], "quick", {}).model_dump(mode="json")
    common: dict[str, Any] = {
        "kind": "token-parity",
        "params": params,
        "state": state,
        "progress": None,
        "stages": [],
        "ranks": [],
    }
    moves = [made(Move, at="T1")]
    return made(RunDocument, **{**common, "created_at": "T0", "history": moves, **given})


def stage(name: str, state: str, attempt: int = 1) -> Stage:
    return made(
        Stage,
        name=name,
        title=name.title(),
        attempt=attempt,
        state=state,
        progress=Progress(done=14, total=20, unit="updates"),
        started_at="T2" if attempt else None,
    )


def rank(number: int, **given: Any) -> Rank:
    common = {"rank": number, "phase": "forward", "step": 14, "last_seen": "T3", "stalled": False}
    return made(Rank, **{**common, **given})


def test_running_says_stage_progress_and_what_follows() -> None:
    stages = [stage("prepare", "succeeded"), stage("train", "killed"), stage("train", "running", 2)]
    ranks = [rank(0), rank(1, phase="backward", step=15, last_seen="T4", stalled=True), rank(2)]
    found = activity(
        run(
            "running",
            stages=[*stages, stage("compare", "queued", 0)],
            ranks=ranks,
            progress=made(CurrentProgress, stage="train"),
        )
    )
    assert found is not None
    assert (found.stage, found.place, found.stages, found.following) == ("Train", 2, 3, ["Compare"])
    assert (found.since, found.heard, found.stalled) == ("T2", "T4", [1])
    assert (found.phase, found.step) == ("forward on 2 ranks, backward on 1 rank", "14 to 15")
    assert found.progress is not None
    assert found.progress.done == 14


def test_waiting_names_the_stages_to_come() -> None:
    found = activity(run("queued"))
    assert found is not None
    assert (found.stage, found.place, found.heard, found.since) == ("", 0, None, "T1")
    assert found.following == list(planned_stages(run("queued")).values())
    assert len(found.following) == found.stages == 5


def test_stages_of_unknown_kinds_and_parameters_are_not_guessed() -> None:
    assert planned_stages(run("queued", kind="elsewhere")) == {}
    assert planned_stages(run("queued", params={"world_size": "two"})) == {}


def test_ended_run_does_nothing() -> None:
    assert activity(run("succeeded")) is None
