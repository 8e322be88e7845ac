"""The registry of kinds: one folder under `trainer/kinds` each, found by its `params` module.

`trainer/kinds/<package>/params.py` defines `KIND: KindSpec`. It must not import torch: web and worker read it. A kind
that lives in a distribution of its own names its `KindSpec` as an entry point of the group `ddp_audit.kinds`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

from pydantic import ValidationError

import trainer.kinds
from trainer.contract.params import CommonParams, FieldProblem, ParamsRefused, PreflightContext
from trainer.contract.wording import fault

DEFAULT_PRESET = "quick"
ENTRY_POINTS = "ddp_audit.kinds"


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPlan:
    """SIGKILLs from outside while a stage trains; every kill is followed by a new attempt of the stage."""

    count: int
    seed: int
    after_stage: str
    """An earlier stage that does the same work uninterrupted; its duration bounds when a kill is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One process group of a run."""

    name: str
    title: str
    entry: str
    """`package.module:function`; called as `function(context)` with a `trainer.common.context.StageContext`."""
    launcher: Literal["python", "torchrun"] = "python"
    """`torchrun` starts `world_size` ranks, `python` one process."""
    imports_torch: bool = True
    """False for a stage that can start at once, without waiting for a process that has torch imported."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Handed to the entry as `context.arguments`; JSON values only."""
    kills: KillPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpec:
    """What the rest of the product knows about a kind."""

    name: str
    title: str
    description: str
    question: str
    """The question a run of this kind answers, shown on the launch page."""
    params: type[CommonParams]
    presets: Mapping[str, Mapping[str, Any]]
    """Values that differ from the defaults of `params`; must contain `quick`."""
    preset_titles: Mapping[str, str]
    stages: Callable[[Any], list[StagePlan]]
    """Parameters -> stages in the order they run. Pure."""
    preflight: Callable[[Any, PreflightContext], list[FieldProblem]] = lambda _params, _context: []
    """Refusals that need a look at the machine (data sources); schema errors never reach it."""


@cache
def kinds() -> Mapping[str, KindSpec]:
    """Return every kind by name, in order of name."""
    found = {}
    for module in pkgutil.iter_modules(trainer.kinds.__path__):
        if module.ispkg:
            spec: KindSpec = importlib.import_module(f"trainer.kinds.{module.name}.params").KIND
            found[spec.name] = spec
    for point in entry_points(group=ENTRY_POINTS):
        spec = point.load()
        found[spec.name] = spec
    return dict(sorted(found.items()))


def resolve_params(kind: KindSpec, preset: str | None, given: Mapping[str, Any]) -> CommonParams:
    """Return complete parameters: defaults, then the preset, then what was given.

    Raises ParamsRefused naming every field that is unknown, of the wrong type, out of range or at odds with another.
    """
    name = preset or DEFAULT_PRESET
    if name not in kind.presets:
        raise ParamsRefused(
            [
                FieldProblem(
                    field="preset", message=f"{name!r} is unknown; presets of {kind.name}: {', '.join(kind.presets)}"
                )
            ]
        )
    try:
        return kind.params.model_validate({**kind.presets[name], **given})
    except ValidationError as error:
        raise ParamsRefused([_problem(kind, item) for item in error.errors(include_url=False)]) from None


def _problem(kind: KindSpec, item: Any) -> FieldProblem:
    field_name = ".".join(str(part) for part in item["loc"]) or "params"
    message = fault(item)
    if item["type"] == "extra_forbidden":
        known = list(kind.params.model_fields)
        meant = "".join(f"; did you mean {name}?" for name in get_close_matches(field_name, known, 1))
        message = f"unknown parameter{meant or ';'} {kind.name} knows {', '.join(known)}"
    elif "field" in item.get("ctx", {}):  # raised by `params` with a field of its own choice
        field_name = str(item["ctx"]["field"])
    return FieldProblem(field=field_name, message=message)
