"""`ddp-audit status`: whether runs can be recorded and executed, the workers, and the queue."""

from typing import Any

import typer

from app.cli.client import open_client
from app.cli.exits import Exit
from app.cli.output import AsJson, emit, say, table
from app.formats import many, size


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(as_json: AsJson = False) -> int:
    """Show workers, queue, schema and free disk. Exit code 1 if runs cannot be executed."""
    document = open_client().get("/status")
    if as_json:
        emit(document)
    else:
        _say(document)
    return Exit.OK if document["ready"] else Exit.NOT_PASSED


def _say(document: dict[str, Any]) -> None:
    workers = [
        [item["pid"], item["host"], item["fresh"], item["heartbeat_seconds"], item["kinds"], item["targets"]]
        for item in document["workers"]
    ]
    if workers:
        table(["worker", "host", "alive", "seconds ago", "kinds", "targets"], workers)
    waiting = [[item["position"], item["id"], item["name"], item["kind"], item["why"]] for item in document["queue"]]
    if waiting:
        table(["place", "run", "name", "kind", "waits for"], waiting)
    say(f"{many(document['running'], 'run')} active, {document['waiting']} waiting")
    schema = document["schema"]
    if schema is not None:
        say(f"schema {schema['database']}, this program has {schema['program']}")
    for name, free in document["disk"]["free_bytes"].items():
        least = size(document["disk"]["min_free_bytes"])
        say(f"{name} directory: {size(free)} free; minimum free space: {least}")
    for item in document["shortfalls"]:
        say(f"shortfall: {item['detail']}")
    say("ready" if document["ready"] else "not ready")
