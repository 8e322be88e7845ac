"""Commands that fetch data and clean up."""

import json
import os
import subprocess
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.client import Client, local_settings, open_client
from app.cli.exits import CommandError, Exit
from app.cli.output import AsJson, emit, note, say, table
from app.cli.storage import told
from app.environment import for_children
from app.formats import many, size
from app.places import module_argv, module_environment
from app.settings import Settings

if TYPE_CHECKING:
    from trainer.contract.kinds import Acquisition, DataSource, KindSpec

Document = dict[str, Any]
NO_ANSWER: Final = "the acquisition ended and gave no answer"
NO_RUN: Final = {"max_runs": 0}
"""The retention policy that keeps only pinned and active runs."""


class Scope(StrEnum):
    """What `clean` covers."""

    GENERATED = "generated"
    DATASETS = "datasets"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("acquire")(acquire)
    app.command("clean")(clean)


def acquire(
    name: Annotated[str, typer.Argument(help="A data source, or a kind to see its data sources.", metavar="NAME")],
    as_json: AsJson = False,
) -> int:
    """Download a data source to this machine, or report that there is nothing to fetch."""
    from trainer.contract.kinds import kinds

    if name not in kinds():
        return _fetch(name, local_settings(), as_json=as_json)
    text = nothing_to_get(kinds()[name])
    if as_json:
        emit({"ok": True, "name": name, "text": text})
    else:
        say(text)
    return Exit.OK


def nothing_to_get(kind: "KindSpec") -> str:
    """Return why there is nothing to fetch for a kind itself, and which of its data sources can be fetched."""
    if kind.acquisition is None:
        return f"nothing to fetch: {kind.name} needs no external data"
    used = {source.name: _presets_using(kind, kind.acquisition, source) for source in kind.acquisition.sources}
    fetched = [source.name for source in kind.acquisition.sources if source.fetched]
    generated = [preset for preset in kind.presets if not any(preset in used[name] for name in fetched)]
    parts = [f"its {_presets(generated)} can start without it"] if generated and fetched else []
    parts += [f"`acquire {name}` gets the data of {_presets(used[name])}" for name in fetched]
    return f"nothing to fetch for {kind.name} itself" + "".join(f"; {part}" for part in parts)


def _presets_using(kind: "KindSpec", acquisition: "Acquisition", source: "DataSource") -> list[str]:
    if not acquisition.parameter:
        return list(kind.presets)
    usual = kind.params.model_fields[acquisition.parameter].default
    named = {preset: str(values.get(acquisition.parameter, usual)) for preset, values in kind.presets.items()}
    return [preset for preset, name in named.items() if source.covers(name)]


def _presets(names: list[str]) -> str:
    if not names:
        return "no preset"
    return f"preset {names[0]}" if len(names) == 1 else f"presets {', '.join(names)}"


def _acquirer(name: str) -> str:
    """Return the module that downloads a data source. Raises CommandError naming the existing sources."""
    from trainer.contract.kinds import data_sources, kinds

    known = data_sources()
    for acquisition, source in known:
        if source.covers(name):
            return acquisition.module
    sources = ", ".join(dict.fromkeys(source.name for _, source in known))
    text = f"unknown data source {name!r}; use one of {sources}, or a kind: {', '.join(kinds())}"
    raise CommandError(Exit.USAGE, text)


def _fetch(name: str, settings: Settings, *, as_json: bool) -> int:
    from app.storage.cleaning import note_acquired

    before = {path.name for path in settings.datasets_dir.glob("*")}
    arguments = ["--datasets-dir", str(settings.datasets_dir), name, *(["--json"] if as_json else [])]
    argv = module_argv(_acquirer(name), *arguments)
    environment = module_environment({**for_children(os.environ), "PYTHONIOENCODING": "utf-8"})
    done = subprocess.run(argv, env=environment, capture_output=True, encoding="utf-8", check=False)
    note_acquired(settings, {path.name for path in settings.datasets_dir.glob("*")} - before)
    if done.returncode == Exit.USAGE:
        raise CommandError(Exit.USAGE, done.stderr.strip() or f"{name!r} is not a data source")
    note(done.stderr.strip())
    if "Traceback (most recent call last)" in done.stderr:  # Python also exits with 1 after a traceback
        raise CommandError(Exit.FAILED, NO_ANSWER)
    if as_json:
        emit(_document(done.stdout))
    else:
        say(done.stdout.strip())
    return Exit.OK if done.returncode == 0 else Exit.NOT_PASSED


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(Exit.FAILED, NO_ANSWER) from None


def clean(
    scope: Annotated[
        Scope, typer.Option(help="Ended runs that are not pinned and orphaned files; or acquired data sets.")
    ] = Scope.GENERATED,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False,
    as_json: AsJson = False,
) -> int:
    """List what could be removed, with bytes; remove it only with --yes. Export what you want to keep first."""
    client = open_client()
    items, skipped = _clean_data_sets(client, yes) if scope is Scope.DATASETS else _clean_generated(client, yes)
    total = sum(item["bytes"] for item in items)
    if as_json:
        emit({"scope": scope.value, "items": items, "bytes": total, "removed": yes, "skipped": skipped})
        return Exit.OK
    table(["what", "path", "bytes"], [list(item.values()) for item in items])
    say(f"{many(len(items), 'item')}, {size(total)}" + (" removed" if yes else "; --yes removes them"))
    for item in skipped:
        note(f"run {item['id']} is kept: {item['why']}")
    if items and not yes:
        say("export what you want to keep first: ddp-audit export ID -o FILE")
    return Exit.OK


def _clean_generated(client: Client, yes: bool) -> tuple[list[Document], list[Document]]:
    """Return what is removed and what is kept: by a retention policy that keeps no unpinned run, and the orphans.

    Only the plan that was just read is applied, so whatever was pinned or used in the meantime is kept.
    """
    if not client.remote:
        from app.storage.cleaning import check_runs_place

        with told():
            check_runs_place(client.settings)
    plan, skipped = client.get("/retention", **NO_RUN), []
    if yes and plan["remove"]:
        skipped = client.post("/retention", {**NO_RUN, "plan": plan["plan"]})["skipped"]
    orphans = client.get("/orphans")
    left = [item for item in orphans["items"] if item["removable"]]
    if yes and left:
        left = client.post("/orphans", {"plan": orphans["plan"]})["removed"]
    stays = {item["id"] for item in skipped}
    runs = [run for run in plan["remove"] if run["id"] not in stays]
    going = {run["id"] for run in runs}
    left = [item for item in left if item["run_id"] not in going]  # its bytes are among those of the run
    return [*map(_run_item, runs), *map(_orphan_item, left)], skipped


def _run_item(run: Document) -> Document:
    return {
        "what": f"run {run['id']} ({run['kind']}, {run['state']})",
        "path": f"runs/{run['id']}",
        "bytes": run["bytes"],
    }


def _orphan_item(orphan: Document) -> Document:
    return {"what": orphan["what"].replace("_", " "), "path": orphan["path"], "bytes": orphan["bytes"]}


def _clean_data_sets(client: Client, yes: bool) -> tuple[list[Document], list[Document]]:
    if client.remote:
        raise CommandError(
            Exit.USAGE,
            "--scope datasets: the data sets are on the service's machine; remove them there with the same command "
            "with neither DDP_AUDIT_HOST nor DDP_AUDIT_PORT set",
        )
    from app.runs.removal import remove_path
    from app.storage.cleaning import acquired_data_sets
    from app.storage.overview import data_sets

    with told():
        paths = acquired_data_sets(client.settings)
        sizes = {item["name"]: item["bytes"] for item in data_sets(client.settings)}
        for path in paths if yes else []:
            remove_path(path)
    found = [
        {"what": "acquired data set", "path": f"datasets/{path.name}", "bytes": sizes[path.name]} for path in paths
    ]
    return found, []
