"""Parameters, preset and stages of the kind `trace`: how a traced command is looked at and judged."""

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue, field_validator
from pydantic_core import PydanticCustomError

from trainer.contract.kinds import KindSpec, Program, StagePlan
from trainer.contract.params import CommonParams
from trainer.kinds.trace.judge.catalogue import EXPECTABLE, FINDINGS

Text = Annotated[str, Field(max_length=4096)]
Severity = Literal["wrong", "waste", "note"]
MOST_WORDS: Final = 1000
TRACE: Final = "trace"
SITE: Final = Path(__file__).parent / "site"
HIDDEN: Final[dict[str, JsonValue]] = {"x-form": False}
"""Not for people to fill in."""


class TraceParams(CommonParams):
    """Parameters of a run; recorded from the command line of `ddp-audit trace`."""

    device: Literal["auto", "cuda", "cpu"] = Field("cpu", title="Device", json_schema_extra=HIDDEN)
    share_gpu: bool = Field(False, title="Share a GPU", json_schema_extra=HIDDEN)
    world_size: int = Field(
        0, ge=0, le=0, title="Ranks", description="As many as the program starts.", json_schema_extra=HIDDEN
    )
    seed: int = Field(47, title="Seed", json_schema_extra=HIDDEN)
    save_every: int = Field(0, title="Save every", json_schema_extra=HIDDEN)
    script: str = Field(
        "", max_length=64, title="Script", description="A training script that the operator registered, by its name."
    )
    command: list[Text] = Field(
        default_factory=list,
        max_length=MOST_WORDS,
        title="Command",
        description="The traced command, word by word; recorded by `ddp-audit trace`.",
        json_schema_extra=HIDDEN,
    )
    imported: bool = Field(
        False,
        title="Imported",
        description="The program ran elsewhere; what it wrote was brought here.",
        json_schema_extra=HIDDEN,
    )
    windows: int = Field(
        20,
        ge=1,
        le=1000,
        title="Windows",
        description="First windows that are looked at in full; later ones are sampled.",
    )
    unit: Literal["token", "sequence", "sample"] = Field(
        "token",
        title="Unit",
        description="What should weigh the same: token, what the loss counts; sequence or sample, rows of the input.",
    )
    fail_on: Severity = Field(
        "wrong", title="Fail on", description="The mildest severity that fails a check: wrong, waste or note."
    )
    allow: list[Annotated[str, Field(max_length=64)]] = Field(
        default_factory=list, max_length=100, title="Allow", description="Names of findings that are accepted."
    )
    expect: dict[str, float] = Field(
        default_factory=dict,
        max_length=20,
        title="Expect",
        description=f"Numbers that become checks: {', '.join(EXPECTABLE)}.",
    )

    @field_validator("allow")
    @classmethod
    def _known_findings(cls, names: list[str]) -> list[str]:
        unknown = [name for name in names if name not in FINDINGS]
        if unknown:
            raise _refusal("allow", f"{unknown[0]!r} is not a finding; findings are {', '.join(sorted(FINDINGS))}")
        return sorted(set(names))

    @field_validator("expect", mode="before")
    @classmethod
    def _numbers(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {key: float(item) if _whole(item) else item for key, item in values.items()}
        return values

    @field_validator("expect")
    @classmethod
    def _known_numbers(cls, values: dict[str, float]) -> dict[str, float]:
        unknown = [name for name in values if name not in EXPECTABLE]
        if unknown:
            raise _refusal("expect", f"{unknown[0]!r} is not measured; use {', '.join(EXPECTABLE)}")
        return values


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def _refusal(field: str, reason: str) -> PydanticCustomError:
    return PydanticCustomError("trace", "{reason}", {"reason": reason, "field": field})


def _stages(params: TraceParams) -> list[StagePlan]:
    program = Program(
        command=tuple(params.command),
        script=params.script,
        imported=params.imported,
        site=SITE,
        folder_variable="DDP_AUDIT_TRACE",
        environment={"DDP_AUDIT_TRACE_OPTIONS": json.dumps({"windows": params.windows})},
    )
    return [
        StagePlan(name=TRACE, title="Run the program", launcher="command", imports="nothing", program=program),
        StagePlan(
            name="judge",
            title="Judge what the ranks wrote",
            entry="trainer.kinds.trace.judge.stage:run",
            imports="nothing",
        ),
    ]


KIND = KindSpec(
    name=TRACE,
    position=20,
    traces=True,
    title="A training script of your own",
    description=(
        "Runs a command such as torchrun or accelerate launch unchanged and watches every rank from inside. Judges the "
        "weight of every token, the synchronisations, the agreement of the ranks and the samples they drew."
    ),
    question="Does this script train what it is meant to train on several ranks?",
    params=TraceParams,
    presets={"quick": {}},
    preset_titles={"quick": "Look at the first 20 windows, then at samples"},
    stages=_stages,
    headline_checks=("token_weights",),
)
