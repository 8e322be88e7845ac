"""Commands that fetch data and tidy up."""

import json
import subprocess
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from app.cli.client import local_settings, ready_settings
from app.cli.exits import CommandError, Exit
from app.cli.output import AsJson, emit, note, say, table
from app.settings import CHECKOUT, Settings


class Scope(StrEnum):
    """What `clean` looks at."""

    GENERATED = "generated"
    DATASETS = "datasets"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("acquire")(acquire)
    app.command("clean")(clean)


def acquire(
    name: Annotated[str, typer.Argument(help="cifar10, folder:NAME, synthetic, or a kind.", metavar="NAME")],
    as_json: AsJson = False,
) -> int:
    """Fetch a data source, or say that there is nothing to get."""
    from trainer.contract.kinds import kinds

    if name in kinds():
        text = _kind_text(name, "data" in kinds()[name].params.model_fields)
        if as_json:
            emit({"ok": True, "name": name, "text": text})
        else:
            say(text)
        return Exit.OK
    return _fetch(name, local_settings(), as_json=as_json)


def _kind_text(name: str, has_sources: bool) -> str:
    if has_sources:
        return f"nothing to get for {name} itself: its preset quick makes its data; `acquire cifar10` gets that of full"
    return f"nothing to get: {name} makes its data from the seed"


def _fetch(name: str, settings: Settings, *, as_json: bool) -> int:
    from app.runs.cleaning import note_acquired

    before = {path.name for path in settings.datasets_dir.glob("*")}
    arguments = ["--datasets-dir", str(settings.datasets_dir), name, *(["--json"] if as_json else [])]
    argv = [sys.executable, "-m", "trainer.kinds.cifar.acquire", *arguments]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    note_acquired(settings, {path.name for path in settings.datasets_dir.glob("*")} - before)
    if done.returncode == Exit.USAGE:
        raise CommandError(Exit.USAGE, done.stderr.strip() or f"{name!r} is no data source")
    note(done.stderr.strip())
    if as_json:
        emit(_document(done.stdout))
    else:
        say(done.stdout.strip())
    return Exit.OK if done.returncode == 0 else Exit.NOT_PASSED


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(Exit.FAILED, "the acquisition ended without an answer") from None


def clean(
    scope: Annotated[Scope, typer.Option(help="Ended runs and leftovers, or acquired data sets.")] = Scope.GENERATED,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False,
    as_json: AsJson = False,
) -> int:
    """List what could be removed, with bytes; remove it only with --yes. Export what you want to keep first."""
    from app.db import create_database_engine
    from app.runs import cleaning
    from app.runs.errors import ServiceError

    settings = ready_settings()
    engine = create_database_engine(settings)
    try:
        items = cleaning.removable(engine, settings, scope.value)
        if yes:
            cleaning.remove(engine, settings, items)
    except ServiceError as error:
        raise CommandError(Exit.USAGE, error.detail) from None
    finally:
        engine.dispose()
    total = sum(item.bytes for item in items)
    if as_json:
        rows = [{"what": item.what, "path": str(item.path), "bytes": item.bytes} for item in items]
        emit({"scope": scope.value, "items": rows, "bytes": total, "removed": yes})
        return Exit.OK
    table(["what", "path", "bytes"], [[item.what, str(item.path), item.bytes] for item in items])
    say(f"{len(items)} things, {total} bytes" + (" removed" if yes else "; --yes removes them"))
    if items and not yes:
        say("export what you want to keep first: GET /api/v1/runs/ID/export")
    return Exit.OK
