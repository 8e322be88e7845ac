"""Parameters, preset and stages of the kind `gradient-audit`."""

from typing import Any, Final, Literal

from pydantic import Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError

from trainer.contract.kinds import KindSpec, StagePlan
from trainer.contract.params import CommonParams, FieldProblem, PreflightContext
from trainer.contract.targets import CATALOGUE, CHOICES, TARGET_NAME

HIDDEN: Final[dict[str, JsonValue]] = {"x-form": False}
TOLERANCES: Final = {"float32": (1e-6, 1e-4), "float64": (1e-12, 1e-10)}
"""atol and rtol by dtype, unless they are given."""


class GradientAuditParams(CommonParams):
    """Parameters of a run; the defaults are the quick audit."""

    target: str = Field(
        "causal-lm",
        max_length=64,
        title="Target",
        description="The training code under audit: a registered target or a shipped example, by its name.",
        json_schema_extra={CHOICES: CATALOGUE},
    )
    steps: int = Field(
        3,
        ge=1,
        le=20,
        title="Steps",
        description="Windows that are compared. Gradients left from the window before are visible from the second on.",
    )
    dtype: Literal["float32", "float64"] = Field(
        "float32", title="Type", description="Of parameters, floating inputs and gradients."
    )
    atol: float = Field(
        1e-6,
        ge=0,
        le=1,
        title="Absolute tolerance",
        description=(
            "A component is outside when |g - reference| > atol + rtol * |reference|. If not given, 1e-12 for float64."
        ),
    )
    rtol: float = Field(
        1e-4,
        ge=0,
        le=1,
        title="Relative tolerance",
        description="See the absolute tolerance. If not given, 1e-10 for float64.",
    )
    save_every: int = Field(0, ge=0, le=0, title="Save every", description="Saves nothing.", json_schema_extra=HIDDEN)

    @model_validator(mode="before")
    @classmethod
    def _tolerances_of_type(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        atol, rtol = TOLERANCES.get(str(values.get("dtype", "float32")), TOLERANCES["float32"])
        return {"atol": atol, "rtol": rtol, **values}

    @field_validator("target")
    @classmethod
    def _name(cls, value: str) -> str:
        if not TARGET_NAME.fullmatch(value):
            reason = f"must be the name of a registered target, such as causal-lm; given {value!r}"
            raise PydanticCustomError("target", "{reason}", {"reason": reason, "field": "target"})
        return value


def _preflight(params: GradientAuditParams, context: PreflightContext) -> list[FieldProblem]:
    found = [entry for entry in context.targets() if entry.name == params.target]
    usable = [entry for entry in found if not entry.problem]
    if usable:
        return []
    if found:
        return [FieldProblem(field="target", message=f"{params.target!r} cannot be used: {found[0].problem}")]
    entries = context.targets()
    known = ", ".join(entry.name for entry in entries if not entry.problem)
    broken = "".join(f"; {entry.spec} {entry.problem}" for entry in entries if entry.problem and not entry.name)
    message = f"{params.target!r} is not registered; registered: {known}{broken}"
    return [FieldProblem(field="target", message=message)]


def _stages(_params: GradientAuditParams) -> list[StagePlan]:
    package = "trainer.kinds.gradient_audit"
    return [
        StagePlan(
            name="inspect",
            title="Build the model on every rank",
            entry=f"{package}.inspection:run",
            launcher="torchrun",
        ),
        StagePlan(name="reference", title="The objective's gradient, one process", entry=f"{package}.reference:run"),
        StagePlan(name="audit", title="Gradients of all ranks", entry=f"{package}.audit:run", launcher="torchrun"),
        StagePlan(name="compare", title="Decide and explain", entry=f"{package}.compare:run", imports="torch"),
    ]


KIND = KindSpec(
    name="gradient-audit",
    position=25,
    title="Gradients of your own training code",
    description=(
        "Runs the accumulation window of a registered target on every rank and compares each component of the gradient "
        "it leaves with the gradient of the objective, computed in one process. If they differ, names the mistake."
    ),
    question="Does this training code leave the gradient of its own objective on every rank?",
    params=GradientAuditParams,
    presets={"quick": {}},
    preset_titles={"quick": "Three windows of a shipped example (about half a minute on two cores)"},
    stages=_stages,
    preflight=_preflight,
    headline_checks=("gradient_parity",),
    reasons={"TargetNotFoundError": "launch_error"},
)
