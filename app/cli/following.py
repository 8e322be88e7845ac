"""`ddp-audit logs`: what the ranks printed, whole or as it comes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.cli.client import Client, open_client
from app.cli.exits import CommandError, Exit
from app.cli.files import hand_over
from app.cli.output import AsJson, RunId, emit, say
from app.runs.states import FINAL

POLL_SECONDS: Final = 0.5
PIECE_BYTES: Final = 1 << 18
STREAMS: Final = ("stdout", "stderr")
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
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="With -o: of the stage; default: the newest.")] = None,
    stream: Annotated[str | None, typer.Option(help="With -o: stdout or stderr; default: stdout.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write one file of one rank as it is: needs --rank.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what the ranks of a run printed; with --json one document, with -f too one JSON document per line."""
    client, place = open_client(), {"stage": stage, "attempt": attempt, "stream": stream}
    if output is not None:
        _download(client, run_id, rank, output, place, as_json=as_json)
        return
    if attempt is not None or stream is not None:
        raise CommandError(Exit.USAGE, "--attempt and --stream choose the file that -o FILE writes")
    reader = Reader(client=client, run_id=run_id, rank=rank, stage=stage)
    lines = reader.follow() if follow else reader.read()
    if as_json and not follow:
        emit({"run_id": run_id, "items": list(lines)})
        return
    for line in lines:
        if as_json:
            emit(line)
        else:
            say(f"[{line['stage']} {line['attempt']} rank {line['rank']} {line['stream']}] {line['line']}")


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
    """Reads every log of a run that was asked for, line by line, from where it stopped last."""

    client: Client
    run_id: int
    rank: int | None
    stage: str | None
    offsets: dict[Place, int] = field(default_factory=dict)
    rests: dict[Place, str] = field(default_factory=dict)
    """The begin of a line whose end has not been written yet."""
    closed: set[tuple[str, int]] = field(default_factory=set)
    """Attempts that were read to their end."""

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield every line there is now."""
        yield from self._lines(self._run(), last=True)

    def follow(self) -> Iterator[dict[str, Any]]:
        """Yield every line until the run has ended."""
        while True:
            run = self._run()
            final = run["state"] in FINAL
            yield from self._lines(run, last=final)
            if final:
                return
            time.sleep(POLL_SECONDS)

    def _run(self) -> dict[str, Any]:
        """Return the run. Raises CommandError when it can never have the rank or the stage that was asked for."""
        run: dict[str, Any] = self.client.get(f"/runs/{self.run_id}")
        stages, ranks = [stage["name"] for stage in run["stages"]], run["params"]["world_size"]
        if self.rank is not None and self.rank >= ranks:
            raise CommandError(Exit.NOT_FOUND, f"run {self.run_id} has no rank {self.rank}, only 0 to {ranks - 1}")
        if stages and self.stage not in {None, *stages}:
            known = ", ".join(dict.fromkeys(stages))
            raise CommandError(Exit.NOT_FOUND, f"run {self.run_id} has no stage {self.stage!r}, only {known}")
        return run

    def _lines(self, run: dict[str, Any], *, last: bool) -> Iterator[dict[str, Any]]:
        for stage in run["stages"]:
            key = (stage["name"], stage["attempt"])
            if not stage["attempt"] or key in self.closed or self.stage not in {None, stage["name"]}:
                continue
            over = last or stage["finished_at"] is not None
            ranks = range(run["params"]["world_size"]) if self.rank is None else [self.rank]
            for rank in ranks:
                for stream in STREAMS:
                    yield from self._file((*key, rank, stream), over=over)
            if over:
                self.closed.add(key)

    def _file(self, place: Place, *, over: bool) -> Iterator[dict[str, Any]]:
        while (piece := self._piece(place)) and piece["text"]:
            self.offsets[place] = piece["next_offset"]
            *whole, rest = (self.rests.pop(place, "") + piece["text"]).split("\n")
            self.rests[place] = rest
            for line in whole:
                yield _document(place, line)
        if over and (rest := self.rests.pop(place, "")):
            yield _document(place, rest)

    def _piece(self, place: Place) -> dict[str, Any] | None:
        stage, attempt, rank, stream = place
        where = {"stage": stage, "attempt": attempt, "stream": stream}
        try:
            piece: dict[str, Any] = self.client.get(
                f"/runs/{self.run_id}/logs/{rank}", **where, offset=self.offsets.get(place, 0), limit=PIECE_BYTES
            )
        except CommandError as error:
            if error.code is Exit.NOT_FOUND:  # a stage with fewer ranks, or a rank that has not begun
                return None
            raise
        return piece


def _document(place: Place, line: str) -> dict[str, Any]:
    stage, attempt, rank, stream = place
    return {"stage": stage, "attempt": attempt, "rank": rank, "stream": stream, "line": line}
