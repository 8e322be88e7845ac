"""Stage `audit`: turns the facts of the training stages into artifacts, checks, panels and the verdict (no torch)."""

from typing import Any

import numpy as np

from trainer.common.context import StageContext
from trainer.common.machine import cpu_model
from trainer.common.process import announce, versions
from trainer.contract.files import make_folder
from trainer.contract.nodes import nodes_of
from trainer.contract.result import Check, Environment, ImageItem, Panel, Result, headline_of, verdict_of
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts, baseline, save_image, top_confusions
from trainer.kinds.cifar.audit.checks import artifacts_check, confusion_check, count_checks, mode_of
from trainer.kinds.cifar.audit.documents import Confusion, HistoryRow, Report, save_history, save_report
from trainer.kinds.cifar.audit.limits import limits
from trainer.kinds.cifar.audit.pair_checks import pair_checks
from trainer.kinds.cifar.audit.panels import EXPLAINS, SYNCS_TITLE, images_panel, panels
from trainer.kinds.cifar.audit.witness_check import sampled_share, witness_check
from trainer.kinds.cifar.data.sources import describe_source
from trainer.kinds.cifar.data.split import DataCard, PreparedData
from trainer.kinds.cifar.facts import ModeFacts
from trainer.kinds.cifar.params import CifarParams

EXAMPLES_PER_CONFUSION = 3
EXAMPLE_SCALE = 4


def run(context: StageContext) -> None:
    """Write `artifacts/<mode>/` and `result.json`."""
    announce(context.telemetry)
    context.telemetry.phase("audit", 0)
    params: CifarParams = context.params
    card = PreparedData(context.paths).card()
    modes = [ModeFacts.load(context.paths, mode) for mode in params.modes]
    for facts in modes:
        write_documents(context, facts, card)
    image_panels = [images_panel(facts, write_images(context, facts, card)) for facts in modes]
    checks = judge(params, modes, [ModeArtifacts(context.paths, facts.mode) for facts in modes])
    majority, accuracy = _baseline(card)
    base = (card.classes[majority], accuracy)
    found: list[Panel] = [*panels(params, modes, card.classes, base), *(item for item in image_panels if item.items)]
    Result(
        kind=context.kind.name,
        verdict=verdict_of(checks),
        environment=_environment(modes[0], params),
        params=params.model_dump(mode="json"),
        summary=summary(params, modes, card),
        limits=limits(params, modes, nodes_of(context.paths)),
        checks=checks,
        panels=found,
        headline=headline_of(checks, EXPLAINS, SYNCS_TITLE),
    ).save(context.paths.result)
    PreparedData(context.paths).remove_images()


def judge(params: CifarParams, modes: list[ModeFacts], artifacts: list[ModeArtifacts]) -> list[Check]:
    """Return every check of the run."""
    checks = [
        *count_checks(params, modes),
        witness_check(params, modes),
        confusion_check(params, modes),
        artifacts_check(artifacts),
    ]
    if len(modes) == 2:
        checks.extend(pair_checks(params, modes[0], modes[1]))
    return checks


def summary(params: CifarParams, modes: list[ModeFacts], card: DataCard) -> dict[str, Any]:
    """Return the headline numbers; counts are per epoch."""
    majority, accuracy = _baseline(card)
    return {
        "data_source": params.data,
        "data_lock": card.digest,
        "parameters": modes[0].parameters,
        "gradient_bytes": modes[0].gradient_bytes,
        "sampled_share": sampled_share(params, modes),
        "modes": {
            facts.mode: {
                "optimizer_steps": facts.epochs[-1].optimizer_steps[0],
                "gradient_syncs": reported_syncs(params, facts)[-1],
                "expected_gradient_syncs": params.syncs_per_epoch(mode_of(facts)),
                "test_accuracy": facts.test.accuracy,
                "test_loss": facts.test.loss,
                "baseline_class": card.classes[majority],
                "baseline_accuracy": accuracy,
                "top_confusions": top_confusions(facts.test.confusion, card.classes),
                "seconds": facts.seconds,
                "communication_seconds": facts.communication_seconds,
                "reduced_bytes": sum(epoch.reduced_bytes for epoch in facts.epochs),
                "peak_memory_bytes": facts.memory.model_dump(),
            }
            for facts in modes
        },
    }


def reported_syncs(params: CifarParams, facts: ModeFacts) -> list[int]:
    """Return one count per epoch: the common one or, if ranks differ, the one furthest from the expected number."""
    expected = params.syncs_per_epoch(mode_of(facts))
    return [max(epoch.gradient_syncs, key=lambda count: abs(count - expected)) for epoch in facts.epochs]


def write_documents(context: StageContext, facts: ModeFacts, card: DataCard) -> None:
    """Write `history.json` and `report.json` of one mode."""
    artifacts = ModeArtifacts(context.paths, facts.mode)
    syncs = reported_syncs(context.params, facts)
    rows = [
        HistoryRow(
            epoch=epoch.epoch,
            mode=facts.mode,
            optimizer_steps=epoch.optimizer_steps[0],
            gradient_syncs=count,
            train_loss=epoch.train_loss,
            train_accuracy=epoch.train_accuracy,
            validation_loss=epoch.validation_loss,
            validation_accuracy=epoch.validation_accuracy,
        )
        for epoch, count in zip(facts.epochs, syncs, strict=True)
    ]
    majority, accuracy = _baseline(card)
    report = Report(
        mode=facts.mode,
        baseline_class=card.classes[majority],
        baseline_accuracy=accuracy,
        model_test_loss=facts.test.loss,
        model_test_accuracy=facts.test.accuracy,
        confusion_matrix=facts.test.confusion,
        top_confusions=[Confusion.model_validate(item) for item in top_confusions(facts.test.confusion, card.classes)],
    )
    make_folder(artifacts.root, within=context.paths.root)
    save_history(artifacts.history, rows)
    save_report(artifacts.report, report)


def write_images(context: StageContext, facts: ModeFacts, card: DataCard) -> list[ImageItem]:
    """Write the sample and a few examples of each frequent confusion; return the examples' captions."""
    artifacts = ModeArtifacts(context.paths, facts.mode)
    images, labels = PreparedData(context.paths).read("test")
    save_image(artifacts.sample, images[0], within=context.paths.root)
    guesses = np.asarray(facts.predicted)
    items = []
    for place, item in enumerate(top_confusions(facts.test.confusion, card.classes), start=1):
        true, predicted = card.classes.index(item["true"]), card.classes.index(item["predicted"])
        chosen = np.flatnonzero((labels == true) & (guesses == predicted))[:EXAMPLES_PER_CONFUSION]
        for number, index in enumerate(chosen, start=1):
            path = artifacts.examples / f"confusion-{place}-{number}.png"
            save_image(path, images[index], EXAMPLE_SCALE, within=context.paths.root)
            caption = f"{item['true']} predicted as {item['predicted']}"
            items.append(ImageItem(path=str(path.relative_to(context.paths.artifacts)), caption=caption))
    return items


def _baseline(card: DataCard) -> tuple[int, float]:
    return baseline(card.counts["train"], card.counts["test"])


def _environment(facts: ModeFacts, params: CifarParams) -> Environment:
    run = facts.run
    return Environment(
        device=run.device,
        backend=run.backend,
        world_size=run.world_size,
        threads=run.threads,
        cpus=run.cpus,
        precision=run.precision,
        versions={**versions(), "torch": run.torch},
        cpu=cpu_model(),
        gpus=run.gpus,
        data_source=describe_source(params.data),
    )
