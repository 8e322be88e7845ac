"""`kills.json`: the planned kills of one stage, written by the worker and read by the kind that planned them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from trainer.contract.files import write_json_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What a rank was doing when the kill hit it."""

    phase: str
    step: int


@dataclass(slots=True, kw_only=True)
class Kill:
    """One SIGKILL to all ranks of an attempt."""

    attempt: int
    """The attempt it ended."""
    ranks: list[int]
    at: float
    """Unix seconds."""
    hit: bool
    """Whether a live rank received it; only then it counts."""
    crumbs: dict[str, Whereabouts] = field(default_factory=dict)
    """rank -> its position, for every rank that left a breadcrumb."""


KILLS: Final = TypeAdapter(list[Kill])


def load_kills(path: Path) -> list[Kill]:
    """Return the kills so far; empty if there is no file. Raises OSError, pydantic.ValidationError."""
    try:
        return KILLS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return []


def save_kills(path: Path, kills: Sequence[Kill]) -> None:
    """Write the whole list atomically. Raises OSError."""
    write_json_atomically(path, [asdict(kill) for kill in kills])
