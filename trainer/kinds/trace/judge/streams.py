"""Check `random_streams`: whether ranks draw different random numbers, and start from the same weights."""

from collections.abc import Iterator

from trainer.kinds.trace.judge.findings import Finding, Judged, listed, place_of, several
from trainer.kinds.trace.judge.records import LoaderRecord, ModelRecord, PassRecord, StreamRecord
from trainer.kinds.trace.judge.runs import Run

CHECK = "random_streams"


def judge(run: Run) -> Judged:
    """Judge seeds and initial weights; left out with a single rank, or where neither was seen."""
    if run.world_size < 2:
        return Judged.left_out(CHECK)
    seeds = _seeds(run)
    initial, streams = _initial(run), _streams(run)
    if not seeds and not initial and not streams:
        return Judged.left_out(CHECK, "Neither initial weights nor seeds of loaders were seen.")
    whole = len(run.trace.ranks) == run.world_size
    return Judged(
        name=CHECK,
        findings=[*_same(run, seeds, streams), *_different(run, initial)] if len(run.trace.ranks) > 1 else [],
        seen=whole,
        detail=f"{several(len(initial), 'model')} and {several(len(streams) + len(seeds), 'random stream')} compared",
    )


def _seeds(run: Run) -> dict[int, list[int]]:
    """Return loader -> the random number that each rank drew from the default generator when its first pass began."""
    drawn: dict[int, list[int]] = {}
    for rank in run.trace.ranks:
        own = {item.loader for item in rank.all(LoaderRecord) if item.own_generator}
        for item in rank.all(PassRecord):
            if item.number == 0 and item.base_seed is not None and item.loader not in own:
                drawn.setdefault(item.loader, []).append(item.base_seed)
    return {loader: seeds for loader, seeds in drawn.items() if len(seeds) == len(run.trace.ranks)}


def _streams(run: Run) -> dict[int, list[str]]:
    """Return model -> digest of every rank's generators when its first forward began."""
    found: dict[int, list[str]] = {}
    for rank in run.trace.ranks:
        for item in rank.all(StreamRecord):
            found.setdefault(item.model, []).append(item.digest)
    return {model: digests for model, digests in found.items() if len(digests) == len(run.trace.ranks)}


def _initial(run: Run) -> dict[int, list[ModelRecord]]:
    found: dict[int, list[ModelRecord]] = {}
    for rank in run.trace.ranks:
        for model in rank.all(ModelRecord):
            if model.initial:
                found.setdefault(model.model, []).append(model)
    return {number: models for number, models in found.items() if len(models) == len(run.trace.ranks)}


def _same(run: Run, seeds: dict[int, list[int]], streams: dict[int, list[str]]) -> Iterator[Finding]:
    loaders = {item.loader: item for item in run.first.all(LoaderRecord)} if run.first else {}
    dropping = [
        number
        for number, found in streams.items()
        if len(set(found)) == 1 and number in run.models and run.models[number].dropouts
    ]
    drawing = [
        number
        for number, drawn in seeds.items()
        if len(set(drawn)) == 1 and number in run.epochs.training and number in loaders and loaders[number].workers
    ]
    if not dropping and not drawing:
        return
    uses = " and ".join(["dropout"] * bool(dropping) + ["augmentation in loader workers"] * bool(drawing))
    found = [place_of(run.first, run.models[number].site) for number in dropping]
    found += [place_of(run.first, loaders[number].site) for number in drawing]
    yield Finding(
        name="same_random_stream",
        severity="note",
        check=CHECK,
        detail=f"All ranks draw the same random numbers when training begins, so {uses} is the same on every rank.",
        places=list(dict.fromkeys(place for place in found if place)),
        measured={"models": dropping[:20], "loaders": drawing[:20], "ranks": len(run.trace.ranks)},
        suggestion="After the model is built, seed every rank differently: torch.manual_seed(seed + rank).",
    )


def _different(run: Run, initial: dict[int, list[ModelRecord]]) -> Iterator[Finding]:
    for number, models in initial.items():
        first = models[0].initial or {}
        names = [name for name in first if any((model.initial or {}).get(name) != first[name] for model in models[1:])]
        if names:
            place = place_of(run.first, models[0].site)
            yield Finding(
                name="different_initial_weights",
                severity="note",
                check=CHECK,
                detail=(
                    f"{several(len(names), 'parameter')} of model {number} were not the same on all ranks before DDP "
                    f"copied those of rank 0: {listed(names)}."
                ),
                places=[place] if place else [],
                measured={"parameters": len(names), "model": number},
                suggestion="Seed every rank alike while the model is built, or load the same checkpoint on every rank.",
            )
