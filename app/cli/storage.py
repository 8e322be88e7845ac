"""Commands that maintain the data directory: disk usage, retention, orphans, backup and restore."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.client import local_settings, open_client
from app.cli.exits import CommandError, Exit, of_status
from app.cli.output import AsJson, emit, note, say, table
from app.formats import many, size

Yes = Annotated[bool, typer.Option("--yes", help="Remove what is listed.")]
Replace = Annotated[bool, typer.Option("--replace", help="Overwrite existing files.")]
DataDir = Annotated[Path | None, typer.Option(help="Default: DDP_AUDIT_DATA_DIR.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (usage, retention, orphans, backup, restore, copy_database):
        app.command(command.__name__.replace("_", "-"))(command)


@contextmanager
def told() -> Iterator[None]:
    """Turn refusals of the called services, a full disk and missing permissions into errors of the command."""
    from app.runs.errors import ServiceError
    from app.schema import DatabaseRefused

    try:
        yield
    except ServiceError as error:
        raise CommandError(of_status(error.status), error.detail, {"error": error.detail, "code": error.code}) from None
    except DatabaseRefused as error:
        raise CommandError(Exit.USAGE, str(error)) from None
    except OSError as error:
        raise CommandError(Exit.FAILED, str(error)) from None


def usage(
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure ended runs again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the disk usage of every run, largest first."""
    document = open_client().get("/usage", refresh=str(refresh).lower())
    if as_json:
        emit(document)
        return
    columns = ("id", "kind", "name", "state", "pinned", "bytes", "files")
    table(columns, [[item[column] for column in columns] for item in document["items"]])
    say(f"{many(document['runs'], 'run')}, {many(document['files'], 'file')}, {size(document['bytes'])}")
    for item in document["datasets"]:
        say(f"data set {item['name']}: {size(item['bytes'])}" + ("" if item["acquired"] else ", added by hand"))
    say(f"database {size(document['database_bytes'])}, other files {size(document['other_bytes'])}")
    for name, free in document["free_bytes"].items():
        say(f"{name} directory: {size(free)} free; minimum free space: {size(document['min_free_bytes'])}")


def retention(
    *,
    max_age_days: Annotated[float | None, typer.Option(help="Remove runs that ended more than N days ago.")] = None,
    max_runs: Annotated[int | None, typer.Option(help="Keep only the newest N ended runs.")] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="Remove the oldest runs until all folders together fit.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only runs of this kind.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List what a policy would remove; remove it only with --yes. Pinned and active runs are always kept."""
    client = open_client()
    limits = {"max_age_days": max_age_days, "max_runs": max_runs, "max_bytes": max_bytes, "kind": kind}
    plan = client.get("/retention", **limits)
    given = {name: value for name, value in limits.items() if value is not None}
    done = client.post("/retention", {**given, "plan": plan["plan"]}) if yes and plan["remove"] else None
    if as_json:
        emit({**plan, "done": done})
        return
    columns = ("id", "kind", "name", "state", "finished_at", "bytes", "why")
    table(columns, [[item[column] for column in columns] for item in plan["remove"]])
    goes = f"{many(len(plan['remove']), 'run')}, {size(plan['remove_bytes'])}"
    say(f"would be removed: {goes}; {plan['kept_runs']} kept")
    if plan["spared"]:
        say(f"{len(plan['spared'])} of those are pinned or active: no policy removes them")
    if plan["over_bytes"]:
        say(f"still {size(plan['over_bytes'])} over the limit: the remaining runs are pinned or active")
    if done is not None:
        say(f"{len(done['removed'])} removed, {size(done['bytes'])}")
        for item in done["skipped"]:
            note(f"run {item['id']} is kept: {item['why']}")
    elif plan["remove"]:
        say("--yes removes them; export what you want to keep first: ddp-audit export ID -o FILE")


def orphans(data_dir: DataDir = None, yes: Yes = False, as_json: AsJson = False) -> int:
    """List orphaned files with their sizes; remove them only with --yes.

    Exit code 1: something was found. `clean` removes them too, together with ended runs.
    """
    client = open_client(data_dir)
    found = client.get("/orphans")
    done = client.post("/orphans", {"plan": found["plan"]}) if yes else None
    items, total = (found["items"], found["bytes"]) if done is None else (done["removed"], done["bytes"])
    if as_json:
        emit({"items": items, "bytes": total, "removed": yes})
    else:
        columns = ("what", "path", "bytes", "run_id", "removable")
        table(columns, [[item[column] for column in columns] for item in items])
        say(f"{many(len(items), 'item')}, {size(total)}" + (" removed" if yes else ""))
    return Exit.NOT_PASSED if items and not yes else Exit.OK


def backup(
    file: Annotated[Path, typer.Argument(help="Name of the backup, a tar file.")],
    data_dir: DataDir = None,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Write this machine's database and run files to one file while the service runs; data sets are not included."""
    from app.storage.backup import backup as write

    _report(lambda: write(local_settings(data_dir=data_dir), file, replace=replace), as_json=as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="A backup file.")],
    data_dir: DataDir = None,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Verify a backup, restore it into an empty data directory and migrate it to the newest schema."""
    from app.storage.restore import restore as put_back

    _report(lambda: put_back(local_settings(data_dir=data_dir), file, replace=replace), as_json=as_json)


def copy_database(
    source: Annotated[str, typer.Argument(help="Path of a SQLite file, or address of a database.")],
    target: Annotated[str, typer.Argument(help="The same, of an empty database.")],
    as_json: AsJson = False,
) -> None:
    """Copy the whole record to an empty database, such as from SQLite to PostgreSQL; stop the service first.

    Every table is compared by rows and digest before anything is kept. The files of the runs stay where they are.
    Then set DDP_AUDIT_DATABASE_URL to the new address.
    """
    from app.storage.copying import address
    from app.storage.copying import copy_database as copy

    with told():
        copied = copy(address(source, "SOURCE"), address(target, "TARGET"))
    if as_json:
        emit({name: {"rows": item.rows, "digest": item.digest} for name, item in copied.items()})
        return
    table(("table", "rows", "digest"), [[name, item.rows, item.digest[:16]] for name, item in copied.items()])
    say(f"{many(sum(item.rows for item in copied.values()), 'row')} copied; digests agree")


def _report(work: Callable[[], dict[str, Any]], *, as_json: bool) -> None:
    with told():
        document = work()
    if as_json:
        emit(document)
        return
    for name, value in document.items():
        if value not in (None, []):
            say(f"{name.replace('_', ' ')}: {value}")
