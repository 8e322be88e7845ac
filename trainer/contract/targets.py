"""Targets, training code whose gradients are audited: how they are registered, and what is known of each; no torch.

Web and worker never import a target. `python -m trainer.targets` does, in a separate process, and prints a `Listing`.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

VARIABLE: Final = "DDP_AUDIT_TARGETS"
ENTRY_POINTS: Final = "ddp_audit.targets"
SPEC: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
TARGET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CHOICES: Final = "x-choices"
"""In the JSON Schema of a parameter: the service knows the values to choose from, those of the named catalogue."""
CATALOGUE: Final = "targets"
EXAMPLES: Final = "trainer.targets.examples"
BUILT_IN: Final = {
    "causal-lm": (
        f"{EXAMPLES}.causal_lm:CausalLanguageModel",
        "A causal language model whose labels are -100 where ignored",
    ),
    "packed-sequences": (f"{EXAMPLES}.packed:PackedSequences", "Documents packed into rows, with masks between them"),
    "image-classifier": (f"{EXAMPLES}.images:ImageClassifier", "A plain image classifier on batches of equal size"),
    "equal-sequences": (f"{EXAMPLES}.equal_sequences:EqualSequences", "Each sequence has the same total weight"),
    "fsdp2": (f"{EXAMPLES}.sharded:Sharded", "FSDP2's fully_shard instead of DDP"),
    "own-all-reduce": (f"{EXAMPLES}.own_all_reduce:OwnAllReduce", "A plain module and an all-reduce of its gradients"),
    "zero": (f"{EXAMPLES}.zero:ShardedOptimizer", "DDP with a ZeroRedundancyOptimizer"),
}
"""Shipped examples by name: (spec, title). They are listed without importing them."""

Origin = Literal["built-in", "setting", "entry point"]


class TargetEntry(BaseModel):
    """One registered target."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Empty if it is unknown, because the target cannot be imported."""
    spec: str
    """`package.module:Object`"""
    origin: Origin
    problem: str = ""
    """Why runs cannot use it; empty if they can."""
    title: str = ""
    """First line of its docstring."""


class Listing(BaseModel):
    """Every registered target that is not built in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    items: list[TargetEntry]
    files: list[str] = []
    """Files that were imported for it; the list is outdated when one of them changes."""
    ended: bool = False
    """Whether the process ended, or was ended, before it could say what each target is."""


class MemberReport(BaseModel):
    """What a check of one member of a target found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    member: str
    ok: bool
    text: str


def read_specs(text: str) -> list[str]:
    """Return the specs of a comma-separated list. Raises ValueError for one that is not `package.module:Object`."""
    specs = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for spec in specs:
        if not SPEC.fullmatch(spec):
            raise ValueError(
                f"{spec[:80]!r} is not package.module:Object; separate several targets by commas, "
                "such as mine.train:Target,mine.other:target"
            )
    return specs


def built_in() -> list[TargetEntry]:
    """Return the shipped examples."""
    return [
        TargetEntry(name=name, spec=spec, origin="built-in", title=title) for name, (spec, title) in BUILT_IN.items()
    ]


def marked(items: Sequence[TargetEntry]) -> list[TargetEntry]:
    """Return the entries; those whose name is taken by an example or by another one get a problem."""
    names = [item.name for item in items if item.name]
    return [item.model_copy(update={"problem": item.problem or _taken(item.name, names)}) for item in items]


def _taken(name: str, names: Sequence[str]) -> str:
    if name in BUILT_IN:
        return f"the name {name!r} belongs to a shipped example: choose another"
    return f"{names.count(name)} targets are called {name!r}: rename" if names.count(name) > 1 else ""
