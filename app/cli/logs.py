"""`ddp-audit logs`: the output of the ranks, complete or followed live."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.cli import following
from app.cli.client import Client, open_client
from app.cli.exits import CommandError, Exit
from app.cli.files import hand_over
from app.cli.output import AsJson, RunId, emit, say
from app.runs.telemetry.items import STREAMS, Item, OutputFilter, Wanted
from app.streams import listening

PIECE_BYTES: Final = 1 << 18
Document = dict[str, Any]
Place = tuple[str, int, int, str]
"""stage, attempt, rank, stream"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("logs")(logs)


def logs(
    run_id: RunId,
    *,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow until the run ends.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="With -o: attempt of the stage; default: the newest.")
    ] = None,
    stream: Annotated[str | None, typer.Option(help="With -o: stdout or stderr; default: stdout.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write one output file of one rank unchanged; requires --rank."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of a run's ranks; with --json one document, with --json -f one JSON document per line."""
    client, place = open_client(), {"stage": stage, "attempt": attempt, "stream": stream}
    if output is not None:
        _download(client, run_id, rank, output, place, as_json=as_json)
        return
    if attempt is not None or stream is not None:
        raise CommandError(Exit.USAGE, "--attempt and --stream select the file for -o FILE; give -o")
    reader = Reader(client=client, run_id=run_id, rank=rank, stage=stage)
    lines = reader.follow() if follow else reader.read()
    if as_json and not follow:
        emit({"run_id": run_id, "items": list(lines)})
        return
    for line in lines:
        if as_json:
            emit(line)
        else:
            text = f"[{line['stage']} {line['attempt']} rank {line['rank']} {line['stream']}] {line['line']}"
            say(text, at_once=follow)
        if not listening():
            return


def _download(
    client: Client, run_id: int, rank: int | None, output: Path, place: dict[str, Any], *, as_json: bool
) -> None:
    if rank is None:
        raise CommandError(Exit.USAGE, "-o FILE writes the output of one rank: give --rank")
    path = f"/runs/{run_id}/logs/{rank}"
    about = {"run_id": run_id, "rank": rank}
    hand_over(lambda write: client.download(path, write, **place, download="1"), output, about, as_json=as_json)


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads the requested logs of a run, line by line."""

    client: Client
    run_id: int
    rank: int | None
    stage: str | None
    _rests: dict[Place, str] = field(default_factory=dict)
    """The beginning of a line whose end has not been written yet."""

    def read(self) -> Iterator[Document]:
        """Yield every line written so far."""
        run = self._run()
        ranks = range(run["params"]["world_size"] or 1) if self.rank is None else [self.rank]
        for stage in run["stages"]:
            if stage["attempt"] and self.stage in {None, stage["name"]}:
                for rank in ranks:
                    for stream in STREAMS:
                        yield from self._read_file((stage["name"], stage["attempt"], rank, stream))

    def _read_file(self, place: Place) -> Iterator[Document]:
        try:
            for text in self._pieces(place, 0):
                yield from self._lines(place, text)
        except CommandError as error:
            if error.code is not Exit.NOT_FOUND:  # a stage with fewer ranks, or a rank that has not started
                raise
        yield from self._unfinished(place)

    def follow(self) -> Iterator[Document]:
        """Yield every line until the run has ended."""
        self._run()
        wanted = Wanted(events=None, output=OutputFilter(stage=self.stage, rank=self.rank))
        for items in following.follow(self.client, self.run_id, wanted):
            for item in items:
                yield from self._followed(item)
        yield from self._unfinished(*self._rests)

    def _followed(self, item: Item) -> Iterator[Document]:
        if item.type == "state":  # by now it may be clear that there is nothing to wait for
            self._run()
        if item.type != "log":
            return
        piece = item.data
        place = (piece["stage"], piece["attempt"], piece["rank"], piece["stream"])
        yield from self._unfinished(*(other for other in self._rests if other[:2] != place[:2]))  # earlier attempts
        if skipped := piece.get("skipped", 0):
            for text in self._pieces(place, piece["offset"] - skipped, piece["offset"]):
                yield from self._lines(place, text)
        yield from self._lines(place, piece["text"])
        if piece["ended"]:
            yield from self._unfinished(place)

    def _run(self) -> Document:
        """Return the run. Raises CommandError if it can never have the requested rank or stage."""
        run: Document = self.client.get(f"/runs/{self.run_id}")
        stages, ranks = [stage["name"] for stage in run["stages"]], run["params"]["world_size"]
        if self.rank is not None and 0 < ranks <= self.rank:
            raise CommandError(Exit.NOT_FOUND, f"run {self.run_id} has no rank {self.rank}, only 0 to {ranks - 1}")
        if stages and self.stage not in {None, *stages}:
            known = ", ".join(dict.fromkeys(stages))
            raise CommandError(Exit.NOT_FOUND, f"run {self.run_id} has no stage {self.stage!r}, only {known}")
        return run

    def _pieces(self, place: Place, begin: int, end: int | None = None) -> Iterator[str]:
        """Yield the text of a file from one byte to another, or to its end."""
        stage, attempt, rank, stream = place
        where = {"stage": stage, "attempt": attempt, "stream": stream}
        while end is None or begin < end:
            limit = PIECE_BYTES if end is None else min(PIECE_BYTES, end - begin)
            path = f"/runs/{self.run_id}/logs/{rank}"
            piece = self.client.get(path, **where, offset=begin, limit=limit)
            if not piece["text"]:
                return
            begin = piece["next_offset"]
            yield piece["text"]

    def _lines(self, place: Place, text: str) -> Iterator[Document]:
        """Yield the complete lines printed there so far."""
        *whole, rest = (self._rests.pop(place, "") + text).split("\n")
        if rest:
            self._rests[place] = rest
        for line in whole:
            yield _document(place, line)

    def _unfinished(self, *places: Place) -> Iterator[Document]:
        """Yield unfinished last lines of files that no longer grow."""
        for place in places:
            if rest := self._rests.pop(place, ""):
                yield _document(place, rest)


def _document(place: Place, line: str) -> Document:
    stage, attempt, rank, stream = place
    return {"stage": stage, "attempt": attempt, "rank": rank, "stream": stream, "line": line}
