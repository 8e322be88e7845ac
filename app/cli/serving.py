"""Commands that serve: web and worker together, a worker alone, and the database's schema."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.client import bring_up_to_date, local_settings, told_settings
from app.cli.output import AsJson, emit, say

DataDir = Annotated[Path | None, typer.Option(help="Directory of database and runs; default: DDP_AUDIT_DATA_DIR.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("serve")(serve)
    app.command("worker")(worker)
    app.command("migrate")(migrate)


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; any non-loopback address requires a token.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0 picks a free port.")] = None,
    data_dir: DataDir = None,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Serve only; start no worker.")] = False,
) -> int:
    """Serve pages and API, together with a worker unless --no-worker is given."""
    from app.cli.server import serve as run_server
    from app.logs import configure
    from app.settings import load_settings

    with told_settings():
        settings = load_settings(host=host, port=port, data_dir=data_dir)
    configure(settings)
    bring_up_to_date(settings)
    return run_server(settings, with_worker=not no_worker)


def worker(
    data_dir: DataDir = None,
    once: Annotated[bool, typer.Option("--once", help="Execute all queued runs, then exit.")] = False,
) -> None:
    """Execute runs of the data directory."""
    from app.logs import configure
    from worker.loop import Worker

    settings = local_settings(data_dir=data_dir)
    configure(settings)
    bring_up_to_date(settings)
    executor = Worker(settings)
    if once:
        executor.run_once()
    else:
        executor.run_forever()


def migrate(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Bring the database to the newest schema."""
    settings = local_settings(data_dir=data_dir)
    before, after = bring_up_to_date(settings)
    if as_json:
        emit({"before": before, "after": after, "changed": before != after})
    elif before == after:
        say(f"the database is at the newest schema, {after}")
    else:
        say(f"the database was migrated from {before or 'nothing'} to schema {after}")
