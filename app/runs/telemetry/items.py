"""What a reader of a run follows, and the items it gets: moves of the state, rank events, output, and the end."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from app.runs.telemetry.cursor import Cursor, owner

Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")
ItemType = Literal["event", "log", "state", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which rank events a reader wants; None narrows nothing."""

    stage: str | None = None
    rank: int | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFilter:
    """Whose captured output a reader wants; None narrows nothing."""

    stage: str | None = None
    rank: int | None = None
    streams: tuple[Stream, ...] = STREAMS
    whole_lines: bool = False
    """Whether an unfinished last line waits for its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a reader follows; the end of the run always comes."""

    moves: bool = True
    events: EventFilter | None = EventFilter()
    """None for no events."""
    output: OutputFilter | None = OutputFilter()
    """None for no output."""

    def owner(self, run_id: int) -> str:
        """Return what a cursor of this reading is `of`: the run, and all by which an address narrows its stream."""
        events, output = self.events, self.output
        told = events and [events.stage, events.rank, events.type]
        return owner("stream", run_id, self.moves, told, output and [output.stage, output.rank])


EVERYTHING: Final = Wanted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that happened."""

    type: ItemType
    data: dict[str, Any]
    """`event`: the event with its place in the run. `log`: a piece of output with its place, whether it is the file's
    last (`ended`), and under flood how many bytes were `skipped` before it and `where` they are. `state`: a move.
    `end`: final state, reason and verdict.
    """
    cursor: Cursor
    """Place of a reader that has seen this item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What came after a cursor."""

    items: list[Item]
    """Empty when there was nothing new."""
    cursor: Cursor
    """Where to read next: behind the last item, and behind what a filter left out."""
