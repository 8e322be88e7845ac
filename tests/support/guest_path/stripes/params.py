"""A guest: a kind from a separate distribution that sets every field of a `KindSpec`."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trainer.contract.kinds import Acquisition, Classifier, DataSource, KindSpec, StagePlan
from trainer.contract.params import CommonParams, FieldProblem, PreflightContext

from .drawing import DIRECTIONS, stored_contrast


class StripesParams(CommonParams):
    """Parameters of a run."""

    steps: int = Field(12, ge=1, le=1000, title="Steps", description="Optimizer steps.")
    batch: int = Field(8, ge=1, le=64, title="Batch", description="Pictures per rank and step.")
    width: int = Field(16, ge=1, le=256, title="Width", description="Units of the hidden layer.")
    data: Literal["stripes-drawn", "stripes-stored"] = Field(
        "stripes-drawn", title="Data", description="stripes-drawn, or stripes-stored once it is acquired."
    )
    learns: bool = Field(True, title="Learns", description="Without it no step is taken, and the verdict is fail.")
    permit: bool = Field(True, title="Permit", description="Without it the ranks refuse to train.")


def _stages(params: StripesParams) -> list[StagePlan]:
    return [
        StagePlan(name="fit", title=f"Fit {params.steps} steps", entry="stripes.train:run", launcher="torchrun"),
        StagePlan(name="judge", title="Judge", entry="stripes.judge:run", imports="nothing"),
    ]


def _preflight(params: StripesParams, context: PreflightContext) -> list[FieldProblem]:
    if params.data == "stripes-drawn" or stored_contrast(context.datasets_dir) is not None:
        return []
    return [FieldProblem(field="data", message="stripes-stored is missing; run `ddp-audit acquire stripes-stored`")]


def _label(params: Mapping[str, Any]) -> str:
    return f"{params['width']} wide"


KIND = KindSpec(
    name="stripes",
    title="Do all ranks fit the same stripes?",
    description="Fits a small network that tells stripes by their direction, and compares the ranks' weights.",
    question="Do all ranks end with the same weights?",
    params=StripesParams,
    presets={"quick": {}, "stored": {"data": "stripes-stored"}},
    preset_titles={"quick": "Drawn stripes, a few seconds", "stored": "Stored stripes"},
    stages=_stages,
    preflight=_preflight,
    headline_checks=("same_weights",),
    trend_check="last_loss",
    verifier="stripes.verify",
    acquisition=Acquisition(
        module="stripes.acquire",
        sources=(
            DataSource(name="stripes-drawn", title="drawn stripes"),
            DataSource(name="stripes-stored", title=f"{len(DIRECTIONS)} stored stripes", fetched=True),
        ),
    ),
    classifier=Classifier(network="stripes.net:build", model_file=lambda _: "fit/model.pt", label=_label),
    reasons={"PermitMissing": "launch_error"},
    quick_start="The quick audit of stripes fits a small network on two ranks and compares their weights.",
)
