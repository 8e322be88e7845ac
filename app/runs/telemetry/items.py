"""Filters of a reader of a run, and the items it gets: state changes, rank events, output, and the end."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from app.runs.telemetry.cursor import Cursor, owner

Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")
ItemType = Literal["event", "log", "state", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Filter of rank events; None filters nothing."""

    stage: str | None = None
    rank: int | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFilter:
    """Filter of captured output; None filters nothing."""

    stage: str | None = None
    rank: int | None = None
    streams: tuple[Stream, ...] = STREAMS
    whole_lines: bool = False
    """Whether an unfinished last line is held back until its end."""
    most: int | None = None
    """Without a `rank`, ranks from this number on are left out; None leaves out none."""

    def wants(self, rank: int, stream: Stream) -> bool:
        """Return whether a file of the wanted stage is read."""
        left_out = self.rank is None and self.most is not None and rank >= self.most
        return self.rank in (None, rank) and stream in self.streams and not left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a reader follows; the end of the run is always included."""

    moves: bool = True
    events: EventFilter | None = EventFilter()
    """None for no events."""
    output: OutputFilter | None = OutputFilter()
    """None for no output."""

    def owner(self, run_id: int) -> str:
        """Return the owner of a cursor of this reading: the run, and all filters of its stream."""
        events, output = self.events, self.output
        told = events and [events.stage, events.rank, events.type]
        return owner("stream", run_id, self.moves, told, output and [output.stage, output.rank])


EVERYTHING: Final = Wanted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item of a run's stream."""

    type: ItemType
    data: dict[str, Any]
    """`event`: the event with its position in the run. `log`: a piece of output with its position, whether it is
    the file's last (`ended`), and under flood how many bytes were `skipped` before it and `where` they are. `state`: a
    state change. `end`: final state, reason and verdict.
    """
    cursor: Cursor
    """Position of a reader that has seen this item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The items after a cursor."""

    items: list[Item]
    """Empty if there was nothing new."""
    cursor: Cursor
    """Where to read next: after the last item and after filtered items."""
