"""Last stage: compares the final states of the trajectories, evaluates the model, and writes `result.json`."""

from collections.abc import Mapping
from typing import Any

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.common.machine import cpu_model, usable_cpus
from trainer.common.process import versions
from trainer.contract.checkpoints import CheckpointInfo, list_checkpoints
from trainer.contract.nodes import network_limits, nodes_of
from trainer.contract.placement import not_validated
from trainer.contract.result import Environment, Result, headline_of, verdict_of
from trainer.kinds.resume import params as names
from trainer.kinds.resume.evidence import Evidence
from trainer.kinds.resume.judgement import Judgement, checks, judge
from trainer.kinds.resume.kills import read_recoveries
from trainer.kinds.resume.panels import DISTANCE_TITLE, EXPLAINS, curves, panels
from trainer.kinds.resume.params import ResumeParams
from trainer.tokens.corpus import build_corpus
from trainer.tokens.evaluate import Evaluation, evaluate
from trainer.tokens.model import build_model

LIMITS = [
    "Other models, real data, other optimizers and mixed precision are not covered.",
    "Checkpoints are written between updates: an interruption there does not prove recovery from any other moment.",
    "Data loader workers that keep state between epochs are not used here and not covered.",
    "Bit equality holds for this hardware, these versions and one thread per rank; other hardware may differ.",
    "A window without targets ends the run on all ranks before its optimizer step; no step uses zero gradients.",
    "Loss and token accuracy say nothing about model quality.",
]


def run(context: StageContext) -> None:
    """Read the final checkpoint of every trajectory, compare, evaluate, write the result."""
    with process_group(context, expected_world_size=1) as group:
        context.telemetry.phase("compare", 0)
        evidence = _evidence(context)
        judgement = _judgement(context, evidence)
        context.telemetry.phase("evaluate", 0)
        scores = _evaluation(group, context.params, judgement.reference)
        _result(context, judgement, evidence, scores).save(context.paths.result)


def _evaluation(group: Group, params: ResumeParams, reference: Evidence) -> Evaluation:
    """Return the scores of the final model on the test sequences, dropout off."""
    model = build_model(params.seed)
    model.load_state_dict(reference.parameters)
    return evaluate(group, model, build_corpus(params.seed, params.world_size).test)


def _evidence(context: StageContext) -> dict[str, Evidence]:
    """Return the final state of every stage that trains to the end, by stage."""
    stages = [*names.trajectories(context.params), *names.TWINS]
    updates = context.params.updates
    return {stage: Evidence.read(stage, context.paths.checkpoints(stage), updates) for stage in stages}


def _judgement(context: StageContext, evidence: Mapping[str, Evidence]) -> Judgement:
    reference, resumed, control = names.trajectories(context.params)
    kills = read_recoveries(context.paths) if context.params.kills else None
    return judge(
        evidence[reference],
        evidence[resumed],
        evidence[control],
        {fault: evidence[stage] for stage, fault in names.TWINS.items()},
        checkpoints=_checkpoints(context),
        kills=kills,
        kills_planned=context.params.kills,
    )


def _checkpoints(context: StageContext) -> dict[str, list[CheckpointInfo]]:
    planned = [stage.name for stage in context.kind.stages(context.params)]
    listed = {stage: list_checkpoints(context.paths.checkpoints(stage)) for stage in planned}
    return {stage: infos for stage, infos in listed.items() if infos}


def _result(
    context: StageContext, judgement: Judgement, evidence: Mapping[str, Evidence], scores: Evaluation
) -> Result:
    found = checks(judgement)
    lines = dict(curves(evidence, context.params.stop_step, joined=not context.params.kills))
    return Result(
        kind=context.kind.name,
        verdict=verdict_of(found),
        environment=_environment(context),
        params=context.params.model_dump(mode="json"),
        summary=_summary(context, judgement, scores),
        limits=limits(context),
        checks=found,
        panels=panels(judgement, lines, scores),
        headline=headline_of(found, EXPLAINS, DISTANCE_TITLE),
    )


def limits(context: StageContext) -> list[str]:
    """Return what the result does not show, including limits that depend on nodes and devices."""
    devices = not_validated(context.config.device, context.config.backend)
    return [*LIMITS, *network_limits(nodes_of(context.paths)), *devices]


def _summary(context: StageContext, judgement: Judgement, scores: Evaluation) -> dict[str, Any]:
    cause = judgement.cause
    return {
        "max_abs_difference": judgement.max_abs_difference,
        "stop_step": context.params.stop_step,
        "updates": context.params.updates,
        "kills": [kill.summary() for kill in judgement.kills or []],
        "diagnosis": None if cause is None else {"cause": cause.name, "text": cause.text},
        "test_loss_per_token": scores.loss_per_token,
        "token_accuracy": scores.token_accuracy,
        "test_tokens": scores.tokens,
    }


def _environment(context: StageContext) -> Environment:
    import torch

    on_gpu = context.config.device == "cuda"
    return Environment(
        device=context.config.device,
        backend=context.config.backend,
        world_size=context.params.world_size,
        threads=torch.get_num_threads(),
        cpus=usable_cpus(),
        precision="fp32",
        versions=versions(),
        cpu=cpu_model(),
        gpus=[torch.cuda.get_device_name(index) for index in context.config.gpus] if on_gpu else [],
        data_source="generated token sequences",
    )
