"""The opaque cursor of a run's stream: a reader's position in state changes, events and logs."""

import base64
import hashlib
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from app.runs.errors import refused

VERSION: Final = 2
LARGEST: Final = 2**63 - 1
MOST_RANKS: Final = 2048
"""Maximum number of ranks whose output is followed."""
MOST_OFFSETS: Final = 2 * MOST_RANKS
LONGEST: Final = 50_000
"""Maximum number of characters of a cursor; one of 1,024 ranks that each printed megabytes has 22,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in a run's stream; the default is before its first item."""

    of: str = ""
    """Identifies the run and the filters it belongs to: see `owner`."""
    event: int = 0
    """Number of the newest event seen."""
    move: int = 0
    """Number of the newest state change seen."""
    position: int = -1
    """Position of the stage whose output is being read; earlier stages have been read completely."""
    attempt: int = 0
    """Attempt of that stage."""
    offsets: tuple[int, ...] = ()
    """Bytes read of each log of that attempt: rank 0 stdout, rank 0 stderr, rank 1 stdout …; absent values are 0."""
    ended: bool = False
    """Whether the last item of an ended run was seen."""

    def encode(self) -> str:
        """Return the cursor as text that is safe in a URL and a header."""
        fields = [VERSION, self.of, self.event, self.move, self.position, self.attempt, self.offsets, int(self.ended)]
        return base64.urlsafe_b64encode(orjson.dumps(fields)).decode().rstrip("=")

    def offset(self, index: int) -> int:
        """Return the number of bytes read from one log."""
        return self.offsets[index] if index < len(self.offsets) else 0

    def with_offset(self, index: int, value: int) -> "Cursor":
        """Return the cursor after one log was read up to byte `value`."""
        offsets = [*self.offsets, *[0] * (index + 1 - len(self.offsets))]
        offsets[index] = value
        return replace(self, offsets=tuple(offsets))


START: Final = Cursor()


def owner(*what: Any) -> str:
    """Return a short text that identifies a run and a reader's filters; `what` must be JSON-serialisable."""
    return hashlib.blake2b(orjson.dumps(what), digest_size=6).hexdigest()


def decode(text: str, of: str | None = None) -> Cursor:
    """Return the cursor that `encode` wrote. Raises Refused for anything else, and for a cursor of another reader."""
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
    return refused("after", f"{text[:80]!r} is not a cursor of this service; use the id of an item, or omit it")
