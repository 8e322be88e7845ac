"""Panels of a training: diverged values are shown as they are, and chance level next to the scores."""

import math
from types import SimpleNamespace
from typing import Any, cast

from trainer.contract.result import SeriesPanel, TablePanel
from trainer.kinds.token_parity.evidence import Evidence
from trainer.kinds.token_parity.handover import read_document, write_document
from trainer.kinds.token_parity.panels import training_panels


def _training(loss: float) -> dict[str, Any]:
    scores = {"loss_per_token": loss, "token_accuracy": 0.5, "tokens": 10}
    history = [{"step": 1, "loss": 1.5, "validation": 1.4}, {"step": 2, "loss": loss}]
    return {"history": history, "test": scores, "validation": scores, "syncs": [[1, 1]] * 2}


def _panels(training: dict[str, Any]) -> tuple[SeriesPanel, TablePanel]:
    series, table = training_panels(cast(Evidence, SimpleNamespace(training=training)))
    assert isinstance(series, SeriesPanel)
    assert isinstance(table, TablePanel)
    return series, table


def test_diverged_loss_shows_as_itself() -> None:
    series, _ = _panels(_training(math.nan))
    assert series.lines[0].y == [1.5, "NaN"]
    assert series.lines[1].y == [1.4, None]  # not measured is not NaN


def test_chance_stands_beside_the_scores() -> None:
    _, table = _panels(_training(1.2))
    assert table.rows[0] == ["test", 1.2, 0.5, 10]
    assert table.rows[-1][0] == "chance"
    assert table.rows[-1][1:3] == [math.log(4), 0.25]


def test_hand_over_keeps_nan_apart(tmp_path: Any) -> None:
    path = tmp_path / "work" / "training.json"
    write_document(path, {"loss": math.nan, "missing": None, "high": math.inf})
    found = read_document(path)
    assert math.isnan(found["loss"])
    assert (found["missing"], found["high"]) == (None, math.inf)
