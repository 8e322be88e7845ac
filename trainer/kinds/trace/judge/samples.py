"""Check `samples`: whether each sample is drawn once per epoch, by one rank."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise

import numpy as np

from trainer.kinds.trace.judge.drawing import Pass, passes
from trainer.kinds.trace.judge.findings import Finding, Judged, listed, place_of, several
from trainer.kinds.trace.judge.reading import Ids
from trainer.kinds.trace.judge.records import LoaderRecord, WindowRecord
from trainer.kinds.trace.judge.runs import Run

CHECK = "samples"
MOST_PASSES = 64
SUGGESTIONS: Mapping[str, str] = {
    "same_data_on_all_ranks": "Give the loader a DistributedSampler(dataset), so that every rank draws its own part.",
    "repeated_samples": "Let one sampler shard the data, and drop_last=True if no sample may be drawn twice.",
    "missing_samples": "Check which sampler leaves them out; drop_last=False keeps the incomplete last batch.",
    "sharded_twice": "Shard once: remove one of the two samplers, or do not pass this loader to prepare().",
    "same_order_every_epoch": "Call sampler.set_epoch(epoch) at the beginning of every epoch.",
    "padded_evaluation": (
        "Evaluate without a padding sampler, or remove the repeated samples before counting, as "
        "gather_for_metrics of accelerate does."
    ),
}


def judge(run: Run) -> Judged:
    """Judge the samples; left out where no data loader was used."""
    loaders = list(run.epochs.loaders.values())
    if not loaders:
        return Judged.left_out(CHECK, "No DataLoader was used: which samples were drawn is not visible.")
    found = list(islice(passes(run), MOST_PASSES))
    visible = [item for item in found if item.ids]
    training = [item for item in visible if item.training]
    findings = list(_findings(run, visible))
    hidden = list(_hidden(run, loaders, found))
    undecided = [text for text in hidden if text.startswith("Undecided")]
    seen = bool(training) and not undecided and all(_visible(run, item, visible) for item in loaders)
    detail = f"{several(len(training), 'pass')} over training data on {several(len(run.trace.ranks), 'rank')} compared"
    if not seen:
        detail = " ".join(hidden) or "No training pass of all ranks was seen to its end."
    return Judged(name=CHECK, findings=findings, seen=seen, detail=detail, hidden=hidden)


def _visible(run: Run, loader: LoaderRecord, visible: Sequence[Pass]) -> bool:
    """Return whether the ids of a loader were seen, if training reads it."""
    return loader.loader not in run.epochs.training or any(item.loader.loader == loader.loader for item in visible)


def _hidden(run: Run, loaders: Sequence[LoaderRecord], found: Sequence[Pass]) -> Iterator[str]:
    for loader in loaders:
        training = loader.loader in run.epochs.training
        if loader.iterable and (training or not run.epochs.training):
            yield f"Ids not visible: {loader.dataset} is an iterable data set, so its samples have no indices."
        elif training and not any(item.ids for item in found if item.loader.loader == loader.loader):
            yield f"The indices drawn from {loader.dataset} (loader {loader.loader}) were not kept."
    if not run.epochs.training and not any(loader.iterable for loader in loaders):
        yield "No loader was read while the optimizer made steps."
    for item in found:
        if item.number or not item.training or not item.ids:
            continue
        if item.drawn_on_purpose:
            yield f"{item.loader.sampler} draws samples by weight: how often each is drawn is the script's own choice."
        elif not item.own_parts and not _alike(item) and item.overlaps_by_itself:
            yield (
                f"Undecided: ranks draw some of the same indices of {item.loader.dataset}, and no sampler shards them. "
                "They may be each rank's own part of the data or the same samples."
            )
        elif _alike(item) and _same_samples(run, item) is None:
            yield (
                f"Undecided: all ranks draw the same indices of {item.loader.dataset}. They may be each rank's own "
                "part of the data or the same samples."
            )


def _findings(run: Run, visible: Sequence[Pass]) -> Iterator[Finding]:
    found: dict[tuple[str, int], list[tuple[Pass, str, dict[str, object], bool]]] = {}
    for item in visible:
        for name, text, measured, note in _of_pass(run, item):
            found.setdefault((name, item.loader.loader), []).append((item, text, measured, note))
    for (name, _), items in found.items():
        first, text, measured, _ = items[0]
        yield _finding(run, name, first, text, measured, count=len(items), note=all(note for *_, note in items))
    yield from _same_order(run, visible)


def _finding(
    run: Run, name: str, item: Pass, text: str, measured: Mapping[str, object], *, count: int, note: bool
) -> Finding:
    place = place_of(run.first, item.loader.site)
    more = f" In {several(count, 'pass')} that were looked at." if count > 1 else ""
    return Finding(
        name=name,
        severity="note" if note else "wrong",
        check=CHECK,
        detail=text + more,
        places=[place] if place else [],
        measured={**measured, "passes": count, "dataset": item.loader.dataset, "length": item.loader.length},
        suggestion=SUGGESTIONS[name],
    )


Found = tuple[str, str, dict[str, object], bool]


def _of_pass(run: Run, item: Pass) -> Iterator[Found]:
    """Yield (name, text, numbers, whether it is only a note) of one pass."""
    if item.own_parts:
        # Indices count within each rank's own part.
        if item.sharded and item.training:
            yield _part_of_part(item)
        return
    if len(item.ids) > 1 and item.training and _alike(item):
        if _same_samples(run, item):
            yield _same_data(item)
        return
    if not item.length or not item.in_range or item.drawn_on_purpose:
        return
    if not item.training:
        if item.sharded and item.complete and run.epochs.training:
            yield from _padded(item)
        return
    if item.overlaps_by_itself:
        return
    counts = item.counts
    missing = np.flatnonzero(counts == 0)
    if item.complete and _twice(item, len(missing)):
        yield _sharded_twice(item, missing.tolist())
        return
    yield from _repeated(item, counts)
    if item.complete and len(missing):
        yield _missing(item, missing.tolist())


def _alike(item: Pass) -> bool:
    """Return whether every rank draws the same set of indices, more than one of them."""
    if len(item.ids) < 2 or len(item.ids[0]) < 2:
        return False
    first = np.unique(item.ids[0])
    return all(len(one) == len(item.ids[0]) and np.array_equal(np.unique(one), first) for one in item.ids[1:])


def _same_samples(run: Run, item: Pass) -> bool | None:
    """Return whether equal indices mean equal samples; None where that is unknown."""
    if item.own_parts is not None:
        return not item.own_parts
    if item.sharded or len({loader.length for loader in item.loaders}) > 1:
        return item.sharded
    if any(not np.array_equal(one, item.ids[0]) for one in item.ids[1:]):
        return None if item.loader.dataset == "Subset" else True
    losses = [_first_losses(record) for record in _first_windows(run)]
    if len(losses) < 2 or not losses[0]:
        return None
    same = all(other == losses[0] for other in losses[1:])
    return None if not same and any(model.dropouts for model in run.models.values()) else same


def _first_windows(run: Run) -> list[WindowRecord]:
    optimizer = run.main_optimizer
    steps = run.steps.get(optimizer, []) if optimizer is not None else []
    return [record for _, record in sorted(steps[0].ranks.items())] if steps else []


def _first_losses(record: WindowRecord) -> list[tuple[float, float | None]]:
    """Return units and values of the losses of a window: equal samples have equal ones, before the ranks differ."""
    return [(loss.units, loss.value) for cell in record.cells for loss in cell.losses]


def _same_data(item: Pass) -> Found:
    count = len(item.ids[0])
    text = (
        f"All {len(item.ids)} ranks draw the same {count:,} samples of {item.loader.dataset}"
        f"{'' if item.sharded else ', and no sampler shards them'}: every sample counts {len(item.ids)} times."
    )
    if item.own_parts is None and not item.sharded:
        text += " If every rank's data set holds other samples, accept this with --allow same_data_on_all_ranks."
    return "same_data_on_all_ranks", text, {"samples_per_rank": count, "ranks": len(item.ids)}, False


def _twice(item: Pass, missing: int) -> bool:
    """Return whether a rank draws as little as if its part had been cut into parts again."""
    ranks = len(item.ids)
    if ranks < 2:
        return False
    once, twice = item.length / ranks, item.length / ranks**2
    return missing >= 0.75 * (item.length - once) and all(
        len(one) < 0.75 * once and 0.5 * twice <= len(one) <= 2 * twice for one in item.ids
    )


def _part_of_part(item: Pass) -> Found:
    drawn, ranks = sum(len(one) for one in item.ids), len(item.ids)
    text = (
        f"Every rank has its own part of the data ({item.loader.dataset}, {item.loader.length:,} samples), and a "
        f"sampler divides it among {ranks} ranks again: {drawn:,} samples are drawn per pass."
    )
    return "sharded_twice", text, {"drawn": drawn, "samples_per_rank": len(item.ids[0])}, False


def _sharded_twice(item: Pass, missing: list[int]) -> Found:
    ranks = len(item.ids)
    drawn = "; ".join(f"rank {rank} draws {listed(one[:6].tolist())}" for rank, one in enumerate(item.ids[:2]))
    text = (
        f"Only {item.length - len(missing):,} of {item.length:,} samples are drawn, about 1/{ranks}: the data is "
        f"divided among the ranks twice ({drawn}). Never drawn: {listed(missing, 8)}."
    )
    return "sharded_twice", text, {"drawn": item.length - len(missing), "missing": len(missing)}, False


def _repeated(item: Pass, counts: Ids) -> Iterator[Found]:
    extra = int((counts - 1).clip(min=0).sum())
    if extra:
        ids = np.flatnonzero(counts > 1).tolist()
        padding = extra <= item.tail and item.sharded
        why = ", as padding to equal batches on all ranks" if padding else ""
        text = (
            f"Pass {item.number + 1} draws {several(len(ids), 'sample')} of {item.length:,} more than once{why}: "
            f"{listed(ids)}."
        )
        yield "repeated_samples", text, {"samples": len(ids), "extra_draws": extra}, padding


def _missing(item: Pass, missing: list[int]) -> Found:
    dropping = any(loader.drop_last or loader.sampler_drop_last for loader in item.loaders)
    tail = dropping and len(missing) < item.tail
    why = ", because incomplete batches are dropped" if tail else ""
    text = (
        f"Pass {item.number + 1} never draws {several(len(missing), 'sample')} of {item.length:,}{why}: "
        f"{listed(missing)}."
    )
    return "missing_samples", text, {"samples": len(missing)}, tail


def _padded(item: Pass) -> Iterator[Found]:
    counts = item.counts
    extra = int((counts - 1).clip(min=0).sum())
    if extra:
        ids = np.flatnonzero(counts > 1).tolist()
        text = (
            f"An evaluation over {item.length:,} samples draws {several(extra, 'sample')} twice, so that all ranks "
            f"have equally many: {listed(ids)}. Whether the script removes them before counting is not visible."
        )
        yield "padded_evaluation", text, {"extra_draws": extra}, True


def _same_order(run: Run, visible: Sequence[Pass]) -> Iterator[Finding]:
    by_loader: dict[int, list[Pass]] = {}
    for item in visible:
        if item.training and item.loader.shuffle and len(item.ids[0]) > 2:
            by_loader.setdefault(item.loader.loader, []).append(item)
    for items in by_loader.values():
        pairs = list(pairwise(items))
        same = [late for early, late in pairs if all(map(_same_beginning, early.ids, late.ids))]
        if same and len(same) == len(pairs):
            text = (
                f"{several(len(items), 'pass')} over {items[0].loader.dataset} have the same order on every rank, "
                "although the sampler shuffles."
            )
            yield _finding(run, "same_order_every_epoch", items[0], text, {}, count=len(items), note=False)


def _same_beginning(early: Ids, late: Ids) -> bool:
    shorter = min(len(early), len(late))
    return shorter > 2 and bool(np.array_equal(early[:shorter], late[:shorter]))
