"""Stage `prepare`: decode the images once, split them by the seed, and reject unusable data before a rank starts."""

from trainer.common.context import StageContext
from trainer.common.process import announce
from trainer.kinds.cifar.data.class_names import case_twins
from trainer.kinds.cifar.data.folders import DataProblem
from trainer.kinds.cifar.data.pool import Part, Pool, open_pool
from trainer.kinds.cifar.data.preflight import size_problems
from trainer.kinds.cifar.data.sources import describe_source
from trainer.kinds.cifar.data.split import DataCard, PreparedData, SplitName, draw_ids
from trainer.kinds.cifar.params import CifarParams


def run(context: StageContext) -> None:
    """Write `work/data`. Raises DataProblem naming the file, PrecisionRefused if the device lacks requested BF16."""
    announce(context.telemetry)
    params: CifarParams = context.params
    if params.precision == "bf16":
        _refuse_missing_bf16(context)
    context.telemetry.phase("decode", 0)
    pool = open_pool(params, context.datasets_dir, context.config.max_image_pixels)
    problems = size_problems(params, train=pool.train.available, test=pool.test.available)
    if problems:
        raise DataProblem("; ".join(problem.message for problem in problems))
    for one, other in case_twins(pool.classes):
        text = f"classes {one!r} and {other!r} differ only in upper and lower case; they are trained as two classes"
        context.telemetry.message(text, level="warning")
    card = _write(context, params, pool)
    sizes = ", ".join(f"{size} {split}" for split, size in card.sizes.items())
    context.telemetry.message(f"data: {describe_source(params.data)}; {sizes} images of {len(card.classes)} classes")


def _write(context: StageContext, params: CifarParams, pool: Pool) -> DataCard:
    ids = draw_ids(
        seed=params.seed,
        train=params.train_size,
        validation=params.validation_size,
        test=params.test_size,
        train_available=pool.train.available,
        test_available=pool.test.available,
    )
    total = params.train_size + params.validation_size + params.test_size
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        context.telemetry.progress(done, total, "images")

    prepared = PreparedData(context.paths)
    for split, part in _parts(pool):
        images, labels = part.fetch(getattr(ids, split), progress)
        prepared.write(split, images, labels)
    return prepared.seal(params.data, pool.classes)


def _parts(pool: Pool) -> list[tuple[SplitName, Part]]:
    return [("train", pool.train), ("validation", pool.train), ("test", pool.test)]


def _refuse_missing_bf16(context: StageContext) -> None:
    import torch  # only if BF16 was requested: the import takes seconds

    from trainer.kinds.cifar.train.precision import refuse_missing_bf16

    refuse_missing_bf16("bf16", torch.device(context.config.device))
