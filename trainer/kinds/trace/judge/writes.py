"""Check `shared_writes`: files that two ranks open for writing."""

from collections.abc import Iterator

from trainer.kinds.trace.judge.findings import Finding, Judged, listed, place_of, several
from trainer.kinds.trace.judge.records import WriteRecord
from trainer.kinds.trace.judge.runs import Run

CHECK = "shared_writes"
MOST_FINDINGS = 20


def judge(run: Run) -> Judged:
    """Compare the files that the ranks write; left out with a single rank."""
    if run.world_size < 2:
        return Judged.left_out(CHECK)
    paths: dict[str, dict[int, WriteRecord]] = {}
    for rank in run.trace.ranks:
        for record in rank.all(WriteRecord):
            paths.setdefault(record.path, {})[rank.rank] = record
    whole = run.trace.whole
    return Judged(
        name=CHECK,
        findings=list(_findings(run, paths))[:MOST_FINDINGS],
        seen=whole,
        detail=f"{several(len(paths), 'file')} written, none of them by two ranks"
        if whole
        else "Not every rank left records, so it is not known what the others wrote.",
    )


def _findings(run: Run, paths: dict[str, dict[int, WriteRecord]]) -> Iterator[Finding]:
    ranks = {rank.rank: rank for rank in run.trace.ranks}
    for path, records in sorted(paths.items()):
        if len(records) < 2:
            continue
        hosts = [ranks[number].host for number in records]
        apart = all(hosts) and len(set(hosts)) == len(hosts)
        found = [place_of(ranks[number], record.site) for number, record in sorted(records.items())]
        known = list(dict.fromkeys(place for place in found if place))
        functions = sorted({record.function for record in records.values()})
        yield Finding(
            name="same_file_written",
            # Without a line of the user's own, a library writes a cache, which it guards by itself.
            severity="wrong" if known and not apart else "note",
            check=CHECK,
            detail=(
                f"Rank {listed(sorted(records))} all write {path} ({', '.join(functions)}): the last one wins, or the "
                "file is damaged."
                + (" They run on different machines: this matters if the folder is shared." if apart else "")
            ),
            places=known,
            measured={"path": path, "ranks": sorted(records)[:64]},
            suggestion="Write it on rank 0 only (if rank == 0), or put the rank into the file's name.",
        )
