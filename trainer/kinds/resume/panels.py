"""The tables and curves of a resume audit."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from trainer.contract.events import encode_number
from trainer.contract.result import BarGroup, BarsPanel, Line, Panel, SeriesPanel, TablePanel
from trainer.kinds.resume.differences import Comparison, Difference, largest
from trainer.kinds.resume.evidence import Evidence
from trainer.kinds.resume.judgement import Judgement
from trainer.kinds.resume.kills import Recovery
from trainer.tokens.evaluate import Evaluation

CHANCE_LOSS, CHANCE_ACCURACY = math.log(4), 0.25
"""Scores of guessing among four symbols."""
DISTANCE_TITLE = "Largest parameter difference from the uninterrupted training"
LOSS_TITLE = "Loss per token"
RANKS_TITLE = "Generators and ids of every rank"
CHECKPOINTS_TITLE = "Checkpoints"
KILLS_TITLE = "Kills"
EXPLAINS = {
    "losses": LOSS_TITLE,
    "rng": RANKS_TITLE,
    "sampler": RANKS_TITLE,
    "checkpoints_valid": CHECKPOINTS_TITLE,
    "kills_survived": KILLS_TITLE,
}
"""Panels by the check they explain; the differences between the trajectories explain all other checks."""


def panels(judgement: Judgement, losses: Mapping[str, Tensor], scores: Evaluation) -> list[Panel]:
    """Return every panel; `losses` are the curves by their displayed name."""
    shown: list[Panel] = [
        distance_bars(judgement),
        loss_curves(losses),
        tensor_table("Largest difference per parameter tensor", judgement, "parameters"),
        tensor_table("Largest difference per optimizer state", judgement, "optimizer"),
        rank_table(judgement),
        process_table(judgement.reference, judgement),
        checkpoint_table(judgement),
        evaluation_table(scores),
    ]
    return shown if judgement.kills is None else [kill_table(judgement.kills), *shown]


def distance_bars(judgement: Judgement) -> BarsPanel:
    """Return the chart that explains the verdict: how far every trajectory ended from the uninterrupted one."""
    right, twins = [judgement.resumed, judgement.control], list(judgement.twins.values())
    values = [encode_number(largest(other.parameters)) for other in [*right, *twins]]
    return BarsPanel(
        title=DISTANCE_TITLE,
        note=(
            f"0 means equal to the last bit. It must be 0 for {judgement.resumed.name} and for "
            f"{judgement.control.name}, a second uninterrupted training. The others were deliberately resumed wrongly: "
            "their difference must not be 0."
        ),
        unit="largest difference",
        labels=[other.name for other in [*right, *twins]],
        groups=[BarGroup(name="largest difference", values=values)],
    )


def loss_curves(losses: Mapping[str, Tensor]) -> SeriesPanel:
    """Return the loss of all trajectories over updates."""
    longest = max(len(values) for values in losses.values())
    return SeriesPanel(
        title=LOSS_TITLE,
        note="Equal trajectories coincide exactly; a wrong resume diverges where it starts.",
        x=list(range(1, longest + 1)),
        x_label="update",
        y_label="nats per token",
        lines=[Line(name=name, y=values.tolist()) for name, values in losses.items()],
    )


def tensor_table(title: str, judgement: Judgement, part: str) -> TablePanel:
    """Return one row per tensor of `part` (parameters or optimizer) and one column per trajectory."""
    others: list[Comparison] = [judgement.resumed, judgement.control, *judgement.twins.values()]
    columns: list[Mapping[str, Difference]] = [getattr(other, part) for other in others]
    tensors: Mapping[str, Tensor] = getattr(judgement.reference, part)
    rows = [[name, _shape(value), *(_largest(column, name) for column in columns)] for name, value in tensors.items()]
    return TablePanel(
        title=title,
        note="Compared with the uninterrupted training; 0 means that every bit is equal.",
        columns=["tensor", "shape", *(other.name for other in others)],
        rows=rows,
    )


def _shape(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "1"


def _largest(column: Mapping[str, Difference], name: str) -> float | str:
    found = column.get(name)
    if found is None or math.isinf(found.largest):
        return "missing"
    return found.largest if found.unequal or found.largest else 0


def rank_table(judgement: Judgement) -> TablePanel:
    """Return one row per trajectory and rank: which generators and ids differ."""
    others = [judgement.resumed, judgement.control, *judgement.twins.values()]
    return TablePanel(
        title=RANKS_TITLE,
        note="Compared with the uninterrupted training, at the end.",
        columns=["trajectory", "rank", "generators that differ", "first update with different ids"],
        rows=[
            [other.name, rank, ", ".join(names) or "none", "none" if other.ids[rank] is None else other.ids[rank]]
            for other in others
            for rank, names in other.rng.items()
        ],
    )


def process_table(reference: Evidence, judgement: Judgement) -> TablePanel:
    """Return the cause found for every difference, the resumed trajectory first."""
    cause = judgement.cause
    rows = [[judgement.resumed.name, "none" if cause is None else cause.name, "" if cause is None else cause.text]]
    rows += [
        [judgement.twins[fault].name, item.name or "none", item.text] for fault, item in judgement.twin_causes.items()
    ]
    return TablePanel(
        title="First cause of a difference",
        note=(
            "Searched in this order: optimizer, configuration, data lock, position in the data, generators of every "
            f"rank, bucket layout; compared with {reference.name}."
        ),
        columns=["trajectory", "cause", "evidence"],
        rows=rows,
    )


def checkpoint_table(judgement: Judgement) -> TablePanel:
    """Return every checkpoint of the run with size, digest and validity."""
    return TablePanel(
        title=CHECKPOINTS_TITLE,
        note="The digest is that of the manifest, which contains the digest of every file.",
        columns=["trajectory", "step", "bytes", "digest", "valid", "problem"],
        rows=[
            [name, info.step, info.bytes, info.digest[:16], "yes" if info.valid else "no", info.problem or ""]
            for name, listed in judgement.checkpoints.items()
            for info in sorted(listed, key=lambda info: info.step)
        ],
    )


def kill_table(kills: Sequence[Recovery]) -> TablePanel:
    """Return every kill that hit a live rank, with the position of the ranks and where the training continued."""
    return TablePanel(
        title=KILLS_TITLE,
        note="SIGKILL sent to all ranks by the worker. Step: finished updates; the phase is read from the breadcrumb.",
        columns=["attempt", "step", "phase", "checkpoint step", "steps repeated"],
        rows=[
            [kill.attempt, kill.step, kill.phase, _or_dash(kill.checkpoint_step), _or_dash(kill.steps_repeated)]
            for kill in kills
        ],
    )


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value


def evaluation_table(scores: Evaluation) -> TablePanel:
    """Return the scores on the test sequences next to those of guessing."""
    return TablePanel(
        title="Evaluation on the test sequences",
        note="Accuracy per token, not per sequence. It says nothing about model quality.",
        columns=["", "loss per token", "token accuracy", "tokens"],
        rows=[
            ["final model", scores.loss_per_token, scores.token_accuracy, scores.tokens],
            ["guessing", CHANCE_LOSS, CHANCE_ACCURACY, scores.tokens],
        ],
    )


def curves(evidence: Mapping[str, Evidence], stop: int, *, joined: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the loss curves by their names; with `joined` the resumed one includes the interrupted part."""
    for name, item in evidence.items():
        title = f"interrupted, then resumed after {stop}" if joined and name == "resumed" else name
        yield title, item.losses
