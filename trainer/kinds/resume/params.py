"""Parameters, presets and stages of the kind `resume`."""

from typing import Final, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from trainer.contract.kinds import KillPlan, KindSpec, StagePlan
from trainer.contract.params import CommonParams
from trainer.tokens.corpus import POOL_SIZE

INTERRUPTED, CONTINUOUS, RESUMED, CONTROL = "interrupted", "continuous", "resumed", "control"
KILLED, COMPARE = "killed", "compare"
RNG_FAULT, SAMPLER_FAULT, OPTIMIZER_FAULT = "rng_not_restored", "sampler_restart", "optimizer_not_restored"
TWINS: Final = {"twin-rng": RNG_FAULT, "twin-sampler": SAMPLER_FAULT, "twin-optimizer": OPTIMIZER_FAULT}
"""Stages that deliberately resume wrongly, and what each does wrong."""
TWIN_TITLES: Final = {
    RNG_FAULT: "Resume with re-seeded instead of restored generators",
    SAMPLER_FAULT: "Resume with the data order restarted from the beginning",
    OPTIMIZER_FAULT: "Resume without the optimizer's state",
}


class ResumeParams(CommonParams):
    """Parameters of a run; the defaults are the full recipe."""

    updates: int = Field(
        100, ge=2, le=100_000, title="Updates", description="Optimizer steps of a complete trajectory."
    )
    stop_step: int = Field(
        50, ge=1, le=99_999, title="Stop after", description="Updates before the interruption, 1 to updates - 1."
    )
    kills: int = Field(
        0,
        ge=0,
        le=100,
        title="Kills",
        description="SIGKILLs to all ranks at random moments of the training; 0 interrupts it once, after stop_step.",
    )
    accumulation: int = Field(
        2, ge=1, le=512, title="Micro-batches", description="Micro-batches per rank and optimizer step (the window)."
    )
    batch_size_per_rank: int = Field(
        8, ge=1, le=512, title="Batch size", description="Sequences per rank and micro-batch."
    )
    learning_rate: float = Field(
        0.1,
        gt=0,
        le=10,
        title="Learning rate",
        description="For SGD, at the start of a cosine schedule over all updates.",
    )
    variant: Literal["correct", "default_buckets"] = Field(
        "correct",
        title="Variant",
        description=(
            "correct: gradients are added in rank order. default_buckets: DDP's own reduction, whose order of addition "
            "changes after a restart (a fault with three or more ranks)."
        ),
    )

    @model_validator(mode="after")
    def _fit_each_other(self) -> "ResumeParams":
        if not 1 <= self.stop_step <= self.updates - 1:
            raise _refusal(
                "stop_step",
                f"{self.stop_step} is outside 1..{self.updates - 1}: the interruption must leave at least one of the "
                f"{self.updates} updates to do",
            )
        window = self.accumulation * self.batch_size_per_rank
        if window > POOL_SIZE:
            raise _refusal(
                "batch_size_per_rank",
                f"a window takes {self.accumulation} x {self.batch_size_per_rank} = {window} sequences of a rank's "
                f"{POOL_SIZE}; at most {POOL_SIZE // self.accumulation} work with {self.accumulation} micro-batches",
            )
        return self


def _refusal(field: str, reason: str) -> PydanticCustomError:
    return PydanticCustomError("resume", "{reason}", {"reason": reason, "field": field})


def trajectories(params: ResumeParams) -> list[str]:
    """Return the stages that train to the end, the uninterrupted one first."""
    return [CONTINUOUS, KILLED if params.kills else RESUMED, CONTROL]


def origin_stage(params: ResumeParams) -> str:
    """Return the stage whose checkpoint at `stop_step` the continued trajectories start from."""
    return CONTINUOUS if params.kills else INTERRUPTED


def _train(name: str, title: str, until: int, *, kills: KillPlan | None = None, **arguments: str | bool) -> StagePlan:
    return StagePlan(
        name=name,
        title=title,
        entry="trainer.kinds.resume.train:run",
        launcher="torchrun",
        arguments={"until": until, **arguments},
        kills=kills,
    )


def _interruptions(params: ResumeParams) -> list[StagePlan]:
    updates, stop = params.updates, params.stop_step
    continuous = _train(CONTINUOUS, f"Train {updates} updates uninterrupted", updates)
    if params.kills:
        plan = KillPlan(count=params.kills, seed=params.seed, after_stage=CONTINUOUS)
        return [continuous, _train(KILLED, f"Train again, killed {params.kills} times", updates, kills=plan)]
    return [
        _train(INTERRUPTED, f"Train and stop after update {stop}", stop),
        continuous,
        _train(RESUMED, f"Continue from update {stop} in new processes", updates, origin=True),
    ]


def _stages(params: ResumeParams) -> list[StagePlan]:
    return [
        *_interruptions(params),
        _train(CONTROL, "Train a second time uninterrupted", params.updates),
        *(_train(name, TWIN_TITLES[fault], params.updates, origin=True, fault=fault) for name, fault in TWINS.items()),
        StagePlan(name=COMPARE, title="Compare bit for bit", entry="trainer.kinds.resume.compare:run", imports="torch"),
    ]


KIND = KindSpec(
    name="resume",
    title="Bit-exact resume",
    description=(
        "Trains a small token model without interruption and again with one, each in new processes, and "
        "compares parameters, optimizer, random generators, data order and losses bit for bit. Three wrong ways to "
        "resume must be detected."
    ),
    question="Does a training that was stopped and resumed end with exactly the same bits as an uninterrupted one?",
    params=ResumeParams,
    presets={
        "quick": {"updates": 20, "stop_step": 10},
        "full": {},
        "kill": {"updates": 40, "stop_step": 20, "save_every": 5, "kills": 4},
    },
    preset_titles={
        "quick": "20 updates, stopped after 10, about a minute on two CPU cores",
        "full": "100 updates, stopped after 50",
        "kill": "40 updates, a checkpoint every 5, killed four times at random moments",
    },
    stages=_stages,
    headline_checks=("parameters", "losses"),
)
