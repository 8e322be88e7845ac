"""A kind for tests: its ranks work briefly and fail on request. Found through its entry point, see `worker_lab`."""

from typing import Literal

from pydantic import Field

from trainer.contract.kinds import KillPlan, KindSpec, StagePlan
from trainer.contract.params import CommonParams


class MisbehaveParams(CommonParams):
    """Parameters: the work of the ranks, and which rank misbehaves at which step."""

    launcher: Literal["python", "torchrun"] = "torchrun"
    stages: int = 1
    steps: int = 4
    step_seconds: float = 0.02
    acts: dict[str, str] = Field(default_factory=dict)
    """Rank -> its act at `at_step`; see `misbehave.ranks`."""
    at_step: int = 2
    meeting: Literal["none", "files", "gloo"] = "none"
    """How the ranks wait for each other in every step."""
    result: Literal["good", "fail", "missing", "invalid", "other_kind"] = "good"
    kills: int = 0


def stages(params: MisbehaveParams) -> list[StagePlan]:
    """Return `stages` equal stages; with kills, an uninterrupted one and then one that is killed."""
    if params.kills:
        plan = KillPlan(count=params.kills, seed=params.seed, after_stage="calm")
        entry = "misbehave.ranks:train"
        return [
            StagePlan(name="calm", title="Calm", entry=entry, launcher=params.launcher),
            StagePlan(name="killed", title="Killed", entry=entry, launcher=params.launcher, kills=plan),
        ]
    return [
        StagePlan(
            name=f"stage-{number}", title=f"Stage {number}", entry="misbehave.ranks:train", launcher=params.launcher
        )
        for number in range(1, params.stages + 1)
    ]


KIND = KindSpec(
    name="misbehave",
    title="Misbehave",
    description="Fails on request.",
    question="Does the worker tell the truth?",
    params=MisbehaveParams,
    presets={"quick": {}},
    preset_titles={"quick": "Quick"},
    stages=stages,
)
