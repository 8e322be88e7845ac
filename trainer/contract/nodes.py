"""The nodes that the ranks of a run really had, as their events report them, and what its result says about them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from trainer.contract.paths import RunPaths

MOST_LINE: Final = 1 << 16
"""Bytes of a first event line."""
MOST_NAMES: Final = 4


def nodes_of(paths: RunPaths) -> list[str]:
    """Return the nodes of the attempt of this run that was spread over the most, sorted.

    Stages may be on different nodes; only the ranks of one attempt communicate.
    """
    found: dict[Path, set[str]] = {}
    for path in paths.root.glob("*/attempt_*/rank*.jsonl"):
        if node := _node(path):
            found.setdefault(path.parent, set()).add(node)
    most: set[str] = max(found.values(), key=len, default=set())
    return sorted(most)


def network_limits(nodes: Iterable[str]) -> list[str]:
    """Return what a result of ranks on these nodes does not show about networks; the same for every kind."""
    names = sorted(set(nodes))
    if len(names) < 2:
        return ["The ranks were on one machine: several nodes and the network between them are not covered."]
    more = ["…"] if len(names) > MOST_NAMES else []
    shown = ", ".join([*(name[:64] for name in names[:MOST_NAMES]), *more])
    return [
        f"The ranks were on {len(names)} nodes ({shown}): other numbers of nodes and other networks are not covered."
    ]


def _node(events: Path) -> str:
    try:
        with events.open("rb") as lines:
            first = json.loads(lines.readline(MOST_LINE))
    except (OSError, ValueError):
        return ""
    if not isinstance(first, dict) or first.get("type") != "start":
        return ""
    node = first.get("node") or first.get("host")
    return node if isinstance(node, str) else ""
