"""The registry of kinds: one folder per kind under `trainer/kinds`, found by its `params` module.

`trainer/kinds/<package>/params.py` defines `KIND: KindSpec`. It must not import torch: web and worker read it. A kind
in a separate distribution registers its `KindSpec` as an entry point in the group `ddp_audit.kinds`.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

import trainer.kinds
from trainer.contract.params import CommonParams, FieldProblem, ParamsRefused, PreflightContext
from trainer.contract.reasons import REASONS
from trainer.contract.wording import fault

DEFAULT_PRESET = "quick"
ENTRY_POINTS = "ddp_audit.kinds"
BUILT_IN: Final = "trainer.kinds"
KIND_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
ENTRY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPlan:
    """SIGKILLs sent by the worker while a stage trains; every kill is followed by a new attempt of the stage."""

    count: int
    seed: int
    after_stage: str
    """An earlier stage that does the same work uninterrupted; its duration limits the times of the kills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of the user's that a stage runs unchanged, with a probe in every Python process it starts."""

    command: tuple[str, ...] = ()
    """argv of a command that only the `ddp-audit trace` that recorded the run may start, in its own terminal."""
    script: str = ""
    """Alternatively the name of a command that the operator registered."""
    imported: bool = False
    """Nothing is run: the records that the probe wrote elsewhere are already in the folder of the run."""
    site: Path
    """Folder to put first on PYTHONPATH: it contains the probe."""
    folder_variable: str
    """Environment variable with the folder that every rank writes into."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further variables for the probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One process group of a run."""

    name: str
    title: str
    entry: str = ""
    """`package.module:function`; called as `function(context)` with a `trainer.common.context.StageContext`."""
    launcher: Literal["python", "torchrun", "command"] = "python"
    """`torchrun` starts `world_size` ranks, `python` one process, `command` a program whose ranks are found by the
    files of the probe in them."""
    program: Program | None = None
    """What `command` starts."""
    imports: Literal["nothing", "torch", "compiler"] = "compiler"
    """What the process of a stage imports, and finds already imported if it is forked.

    `nothing`: it starts immediately, without waiting for torch. `compiler`: torch and its compiler, which the first
    optimizer or DDP of a process imports."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the entry as `context.arguments`; JSON values only."""
    kills: KillPlan | None = None

    def __post_init__(self) -> None:
        if (self.launcher == "command") != (self.program is not None) or (self.launcher == "command") == bool(
            self.entry
        ):
            raise ValueError(f"stage {self.name}: the launcher `command` needs a program, every other an entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Data that runs of a kind can read."""

    name: str
    """Name for `ddp-audit acquire`. A name that ends in `:NAME` matches every name with that prefix."""
    title: str
    """A short description."""
    fetched: bool = False
    """Whether acquiring it downloads files to this machine; else they are generated or created by hand."""

    def covers(self, name: str) -> bool:
        """Return whether `name` refers to this source."""
        family = self.name.removesuffix("NAME")
        return name.startswith(family) if family.endswith(":") else name == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """The data sources of a kind, and the module that fetches them."""

    module: str
    """Run as `python -m MODULE --datasets-dir D NAME [--json]`. It prints the outcome, with `--json` as one document
    `{ok, name, text, …}`. Exit code 0: the data is available; 1: it could not be fetched; 2: unknown name."""
    sources: tuple[DataSource, ...]
    parameter: str = "data"
    """The parameter that names the source of a run; empty when every run reads all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """How the image classifier that a run trains is found and built."""

    network: str
    """`package.module:function`, called as `function(header)` with a `trainer.common.model_file.ModelHeader`; returns
    the `torch.nn.Module` that the weights must fit. It maps (B, 3, 32, 32) to logits (B, classes)."""
    model_file: Callable[[Mapping[str, Any]], str]
    """Parameters of a run -> its model file, relative to `artifacts/`. A kind that trains several models names the one
    to use. The file is written by `trainer.common.model_file.save_model`."""
    label: Callable[[Mapping[str, Any]], str] = lambda _params: ""
    """Parameters of a run -> a short text that distinguishes its model from others in a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpec:
    """Everything the rest of the product knows about a kind. Raises ValueError for an invalid specification."""

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
    """Parameters -> stages in execution order. Pure."""
    preflight: Callable[[Any, PreflightContext], list[FieldProblem]] = lambda _params, _context: []
    """Checks that depend on the machine (data sources); it is called only with parameters that fit the schema."""
    headline_checks: tuple[str, ...] = ()
    """The most informative checks of a passed run; pages show these first. Empty: the first ones with numbers."""
    trend_check: str = ""
    """The check whose trend is shown first. Empty: the first headline check."""
    verifier: str = ""
    """Module that repeats the audit from the stored files, run as `python -m MODULE --run-dir D`. It prints one JSON
    document `{ok, rows, problems, pass_line}`. Empty: the result, its verdict and all files are checked."""
    acquisition: Acquisition | None = None
    """None: runs need no external data."""
    classifier: Classifier | None = None
    """None: no run of this kind trains an image classifier."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Exception class name -> reason of failure, one of `trainer.contract.reasons.REASONS`."""
    quick_start: str = ""
    """What the preset `quick` shows and how long it takes, for users without any run: the start page offers it
    with one button. Empty: not offered there."""
    exercise: str = ""
    """The preset that measures the worked example of the page `/explain`. Empty: none."""
    position: int = 50
    """Order among the kinds of its distribution: lower values first, then by name."""
    traces: bool = False
    """Whether its first stage runs a program of the user's: `ddp-audit trace` records runs of this kind."""

    def __post_init__(self) -> None:
        problem = next(_spec_problems(self), None)
        if problem is not None:
            raise ValueError(f"kind {self.name!r}: {problem}")

    @property
    def first_trend(self) -> str:
        """The check whose trend is shown first; empty if the kind names none."""
        return self.trend_check or next(iter(self.headline_checks), "")


def _spec_problems(spec: KindSpec) -> Iterator[str]:
    if not KIND_NAME.fullmatch(spec.name):
        yield f"the name must match {KIND_NAME.pattern}"
    if DEFAULT_PRESET not in spec.presets:
        yield f"presets must contain {DEFAULT_PRESET}; they are {', '.join(spec.presets) or 'none'}"
    if spec.exercise and spec.exercise not in spec.presets:
        yield f"exercise {spec.exercise!r} is not among the presets: {', '.join(spec.presets)}"
    unknown = sorted(set(spec.reasons.values()) - REASONS)
    if unknown:
        yield f"reasons may be {', '.join(sorted(REASONS))}, not {', '.join(map(repr, unknown))}"
    if spec.classifier is not None and not ENTRY.fullmatch(spec.classifier.network):
        yield f"classifier.network must be package.module:function, not {spec.classifier.network!r}"
    source = "" if spec.acquisition is None else spec.acquisition.parameter
    if source and source not in spec.params.model_fields:
        yield f"acquisition.parameter {source!r} is not a parameter: {', '.join(spec.params.model_fields)}"


@cache
def kinds() -> Mapping[str, KindSpec]:
    """Return every kind by name, sorted by name.

    Raises TypeError for an entry point that is not a KindSpec, ValueError for a name that is already taken.
    """
    found: dict[str, KindSpec] = {}
    for module in pkgutil.iter_modules(trainer.kinds.__path__):
        if module.ispkg:
            _add(found, importlib.import_module(f"{BUILT_IN}.{module.name}.params").KIND, module.name)
    for point in entry_points(group=ENTRY_POINTS):
        _add(found, point.load(), f"entry point {point.value}")
    return dict(sorted(found.items()))


def _add(found: dict[str, KindSpec], spec: object, origin: str) -> None:
    if not isinstance(spec, KindSpec):
        raise TypeError(f"{origin}: a kind must be a KindSpec, not a {type(spec).__name__}")
    if spec.name in found:
        raise ValueError(f"{origin}: the kind {spec.name!r} already exists")
    found[spec.name] = spec


def ordered() -> list[KindSpec]:
    """Return every kind in order of precedence: built-in kinds first, each group sorted by position and name."""
    return sorted(
        kinds().values(), key=lambda spec: (not spec.params.__module__.startswith(f"{BUILT_IN}."), spec.position)
    )


def default_kind() -> KindSpec:
    """Return the kind that pages show before one is chosen: the first with a quick start, else the first."""
    return next(iter(quick_starts()), ordered()[0])


def quick_starts() -> list[KindSpec]:
    """Return the kinds that are offered to users without any run."""
    return [spec for spec in ordered() if spec.quick_start]


def exercise_kind() -> KindSpec | None:
    """Return the kind that measures the worked example of the page `/explain`."""
    return next((spec for spec in ordered() if spec.exercise), None)


def program_of(spec: KindSpec, params: CommonParams) -> Program | None:
    """Return the program of the user's that a run starts, None for every other run."""
    return next((stage.program for stage in spec.stages(params) if stage.program is not None), None)


def tracing_kind() -> KindSpec | None:
    """Return the kind that looks into a program of the user's."""
    return next((spec for spec in ordered() if spec.traces), None)


def classifiers() -> Mapping[str, Classifier]:
    """Return the classifier of every kind that has one, by kind name, in order of precedence."""
    return {spec.name: spec.classifier for spec in ordered() if spec.classifier is not None}


def data_sources() -> list[tuple[Acquisition, DataSource]]:
    """Return every data source with the module that fetches it, in order of precedence of the kinds."""
    return [(spec.acquisition, source) for spec in ordered() if spec.acquisition for source in spec.acquisition.sources]


def resolve_params(kind: KindSpec, preset: str | None, given: Mapping[str, Any]) -> CommonParams:
    """Return complete parameters: defaults, overridden by the preset, overridden by the given values.

    Raises ParamsRefused naming every field that is unknown, of the wrong type, out of range or in conflict with others.
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
    elif "field" in item.get("ctx", {}):  # raised by `params`, which chooses the field
        field_name = str(item["ctx"]["field"])
    return FieldProblem(field=field_name, message=message)
