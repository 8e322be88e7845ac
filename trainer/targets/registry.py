"""Finds registered targets and imports them; only for separate processes and for ranks, never for web or worker."""

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from trainer.contract.targets import (
    BUILT_IN,
    ENTRY_POINTS,
    VARIABLE,
    Listing,
    Origin,
    TargetEntry,
    marked,
    read_specs,
)
from trainer.targets.members import Target, TargetFault, TargetNotFoundError, shape_problem


def registered() -> Iterator[tuple[str, Origin]]:
    """Yield (spec, origin) of every registered target that is not built in: from the setting, then entry points."""
    for spec in read_specs(os.environ.get(VARIABLE, "")):
        yield spec, "setting"
    for point in entry_points(group=ENTRY_POINTS):
        yield point.value, "entry point"


def load_target(name: str) -> Target:
    """Return the target with this name. Raises TargetNotFoundError saying why there is none that can be used."""
    if name in BUILT_IN:
        return Target(name, load_object(BUILT_IN[name][0]))
    problems = []
    for spec, _ in registered():
        try:
            found = load_object(spec)
        except TargetFault as error:
            problems.append(str(error))
            continue
        if getattr(found, "name", None) != name:
            continue
        if problem := shape_problem(found):
            raise TargetNotFoundError(f"target {name!r} ({spec}) {problem}")
        return Target(name, found)
    known = ", ".join(BUILT_IN)
    others = f"; {'; '.join(problems)}" if problems else ""
    raise TargetNotFoundError(f"no registered target is called {name!r}; shipped examples are {known}{others}")


def load_object(spec: str) -> Any:
    """Return the object of a spec, a class made without arguments. Raises TargetFault in one line."""
    module, _, path = spec.partition(":")
    try:
        with _quiet():
            found = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
            return found() if inspect.isclass(found) else found
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        text = (str(error).strip().splitlines() or [""])[0]
        doing = "cannot be imported" if module not in sys.modules else "cannot be used"
        raise TargetFault(f"{spec} {doing}: {type(error).__name__}: {text}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # What a module prints when it is imported must not end up in a document on standard output.
    with contextlib.redirect_stdout(sys.stderr):
        yield


def listing() -> Listing:
    """Import every registered target and return what was found."""
    before = set(sys.modules)
    known = list(registered())
    items = [_entry(spec, origin) for spec, origin in known]
    return Listing(
        items=marked(items), files=sorted({*_files(before), *filter(None, (_source(spec) for spec, _ in known))})
    )


def _entry(spec: str, origin: Origin) -> TargetEntry:
    try:
        found = load_object(spec)
    except TargetFault as error:
        return TargetEntry(name="", spec=spec, origin=origin, problem=str(error).removeprefix(f"{spec} "))
    name = getattr(found, "name", None)
    title = (inspect.getdoc(found) or "").strip().splitlines()
    return TargetEntry(
        name=name if isinstance(name, str) else "",
        spec=spec,
        origin=origin,
        problem=shape_problem(found),
        title=title[0][:200] if title else "",
    )


def _files(before: set[str]) -> Iterator[str]:
    """Yield the source files outside of the standard library and site-packages that were imported."""
    for name in set(sys.modules) - before:
        path = getattr(sys.modules.get(name), "__file__", None)
        if path and "site-packages" not in path and not path.startswith(sys.base_prefix):
            yield path


def _source(spec: str) -> str | None:
    """Return the file of a target's module, also if it cannot be imported."""
    try:
        found = importlib.util.find_spec(spec.partition(":")[0])
    except (ImportError, ValueError, AttributeError):
        return None
    return found.origin if found is not None else None
