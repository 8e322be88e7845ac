"""Orders to the supervisors on the nodes, through small files in the folder of the attempt; standard library only.

A signal sent by Slurm would reach every process of a job. The files exist from the start: a shared file system may
hide a new file for a while, but an existing one is checked whenever it is opened.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

WORKER: Final = "orders.json"
"""Written by the worker alone."""
HEAD: Final = "ending.json"
"""Written by the program on the first node alone."""


@dataclass(slots=True, kw_only=True)
class Orders:
    """What the nodes shall do."""

    stop: bool = False
    """End everything, with the grace period."""
    stacks: int = 0
    """How often the stacks of the ranks were requested."""
    kill_at: float = 0.0
    """Unix seconds at which all nodes kill their ranks; 0: never."""


@dataclass(slots=True, kw_only=True)
class Ending:
    """What the program on the first node has seen."""

    failed: str = ""
    """Name of the first node whose ranks failed."""


def write_orders(folder: Path, orders: Orders) -> None:
    """Replace the orders of the worker. Raises OSError."""
    write_quickly(folder / WORKER, asdict(orders))


def write_ending(folder: Path, ending: Ending) -> None:
    """Replace what the first node has seen. Raises OSError."""
    write_quickly(folder / HEAD, asdict(ending))


def read_orders(folder: Path) -> Orders:
    """Return the newest orders, none if they cannot be read."""
    found = read_quickly(folder / WORKER)
    return Orders(
        stop=bool(found.get("stop")), stacks=int(found.get("stacks", 0)), kill_at=float(found.get("kill_at", 0.0))
    )


def read_ending(folder: Path) -> Ending:
    """Return what the first node has seen."""
    return Ending(failed=str(read_quickly(folder / HEAD).get("failed", "")))


def write_quickly(path: Path, document: Any) -> None:
    """Write a small JSON document that readers see whole; unlike a report it need not survive a crash."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    aside.write_text(json.dumps(document))
    aside.replace(path)


def read_quickly(path: Path) -> dict[str, Any]:
    """Return a small JSON document, empty if it is not there or not complete."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
