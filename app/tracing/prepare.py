"""A folder to trace with where this product is not installed: the probe, room for what it writes, and its options."""

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainer.contract.files import write_json_atomically
from trainer.contract.kinds import KindSpec, Program, program_of, resolve_params

SITE: Final = "site"
RECORDS: Final = "records"
OPTIONS: Final = "trace.json"
VERSION: Final = 1
LEFT_OUT: Final = shutil.ignore_patterns("__pycache__")


class Unwritable(ValueError):
    """The folder cannot be made; the text says why and what would work."""


def prepare(spec: KindSpec, folder: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """Write the folder and return what has to be exported before a launch line, ready for a shell.

    Raises trainer.contract.params.ParamsRefused, and Unwritable for a folder that cannot be written or holds
    something else.
    """
    program = _program(spec, given)
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = {path.name for path in folder.iterdir()} - {SITE, OPTIONS}
        if strange:
            found = ", ".join(sorted(strange)[:3])
            raise Unwritable(f"{folder} holds {found}; give a folder that is new, or that was only prepared")
        shutil.copytree(program.site, folder / SITE, ignore=LEFT_OUT, dirs_exist_ok=True)
        write_json_atomically(folder / OPTIONS, {"version": VERSION, "params": dict(given)})
    except OSError as error:
        raise Unwritable(f"{folder} cannot be written: {error.strerror or error}") from None
    return exports(program, folder)


def exports(program: Program, folder: Path) -> dict[str, str]:
    """Return variable -> value for a shell, quoted."""
    before = f'{shlex.quote(str(folder / SITE))}"${{PYTHONPATH:+{os.pathsep}$PYTHONPATH}}"'
    told = {name: shlex.quote(value) for name, value in program.environment.items()}
    return {"PYTHONPATH": before, program.folder_variable: shlex.quote(str(folder / RECORDS)), **told}


def _program(spec: KindSpec, given: Mapping[str, Any]) -> Program:
    program = program_of(spec, resolve_params(spec, None, {**given, "imported": True}))
    if program is None:
        raise TypeError(f"kind {spec.name} traces and has no stage with a program")
    return program
