"""The opaque cursor of a run's stream: how far a reader is in moves, events and logs at once."""

import base64
import hashlib
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from app.runs.errors import refused

VERSION: Final = 2
LARGEST: Final = 2**63 - 1
MOST_RANKS: Final = 2048
"""Ranks whose output is followed."""
MOST_OFFSETS: Final = 2 * MOST_RANKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in a run's stream; the default is before its first item."""

    of: str = ""
    """Which run it is a place in, and as narrowed by which filters: see `owner`."""
    event: int = 0
    """Number of the newest event seen."""
    move: int = 0
    """Number of the newest move of the state seen."""
    position: int = -1
    """Position of the stage whose output is being read; earlier stages are read to their end."""
    attempt: int = 0
    """Attempt of that stage."""
    offsets: tuple[int, ...] = ()
    """Bytes read of each log of that attempt: rank 0 stdout, rank 0 stderr, rank 1 stdout …; what is absent is 0."""
    ended: bool = False
    """Whether the last item of a final run was seen."""

    def encode(self) -> str:
        """Return the cursor as text that fits a URL and a header."""
        fields = [VERSION, self.of, self.event, self.move, self.position, self.attempt, self.offsets, int(self.ended)]
        return base64.urlsafe_b64encode(orjson.dumps(fields)).decode().rstrip("=")

    def offset(self, index: int) -> int:
        """Return the bytes read of one log."""
        return self.offsets[index] if index < len(self.offsets) else 0

    def with_offset(self, index: int, value: int) -> "Cursor":
        """Return the cursor after one log was read up to byte `value`."""
        offsets = [*self.offsets, *[0] * (index + 1 - len(self.offsets))]
        offsets[index] = value
        return replace(self, offsets=tuple(offsets))


START: Final = Cursor()


def owner(*what: Any) -> str:
    """Return the short text that stands for a run and what a reader of it wants; JSON can carry `what`."""
    return hashlib.blake2b(orjson.dumps(what), digest_size=6).hexdigest()


def decode(text: str, of: str | None = None) -> Cursor:
    """Return the cursor `encode` wrote. Raises Refused for anything else, and for one that is not `of` this reader."""
    try:
        fields = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        version, given, event, move, position, attempt, offsets, ended = fields
        numbers = [event, move, position, attempt, ended, *offsets]
    except (ValueError, TypeError):
        raise _foreign(text) from None
    sound = version == VERSION and isinstance(given, str) and len(offsets) <= MOST_OFFSETS
    if not sound or not all(type(number) is int and -1 <= number <= LARGEST for number in numbers):
        raise _foreign(text)
    if of not in (None, given):
        raise refused("after", "this cursor belongs to another run, or to other filters; start again without a cursor")
    places = {"event": event, "move": move, "position": position, "attempt": attempt, "ended": bool(ended)}
    return Cursor(of=given, offsets=tuple(offsets), **places)


def _foreign(text: str) -> Exception:
    return refused("after", f"{text[:80]!r} is no cursor of this service; take the id of an item, or none")
