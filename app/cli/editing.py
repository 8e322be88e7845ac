"""Commands that change recorded runs: edit their labels, cancel them, delete them."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from app.cli.client import open_client
from app.cli.exits import CommandError, Exit
from app.cli.output import AsJson, emit, note, readable, say, table

RunIds = Annotated[list[int], typer.Argument(help="Numbers of the runs.", metavar="ID [ID ...]")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Tags = list[str] | None
Document = dict[str, Any]
NOT_TRIED: Final = "not tried"
LABELS: Final = ("name", "tags", "notes", "pinned")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (edit, cancel, delete):
        app.command(command.__name__)(command)


def edit(
    run_ids: RunIds,
    *,
    name: Annotated[str | None, typer.Option(help="New name; an empty one removes it.")] = None,
    tag: Annotated[Tags, typer.Option(help="Replaces all tags of the run; may be given several times.")] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
    add_tag: Annotated[Tags, typer.Option(help="A tag to add; may be given several times.")] = None,
    remove_tag: Annotated[Tags, typer.Option(help="A tag to remove; may be given several times.")] = None,
    notes: Annotated[str | None, typer.Option(help="New notes; - reads them from standard input.")] = None,
    pin: Annotated[bool | None, typer.Option("--pin/--unpin", help="Pinned runs are kept during clean-up.")] = None,
    as_json: AsJson = False,
) -> int:
    """Change name, tags, notes or pin of runs, in any state; options not given change nothing.

    With --json one run's document, for several runs {items} with the outcome of each.
    """
    if no_tags and (tag or add_tag or remove_tag):
        raise CommandError(Exit.USAGE, "--no-tags removes all tags; it cannot be combined with other tag options")
    wanted = {
        "name": name,
        "tags": [] if no_tags else tag,
        "add_tags": add_tag,
        "remove_tags": remove_tag,
        "notes": _notes(notes),
        "pinned": pin,
    }
    given = {field: value for field, value in wanted.items() if value is not None and (value != [] or no_tags)}
    if not given:
        raise CommandError(
            Exit.USAGE, "nothing to change: give --name, --tag, --add-tag, --remove-tag, --notes or --pin"
        )
    client = open_client()

    def change(run_id: int) -> str:
        client.patch(f"/runs/{run_id}", given)
        return "edited"

    if len(run_ids) > 1:
        return _each(run_ids, change, as_json=as_json)
    document = client.patch(f"/runs/{run_ids[0]}", given)
    if as_json:
        emit(document)
    else:
        table([f"run {run_ids[0]}", ""], [[field, document[field]] for field in LABELS])
    return Exit.OK


def _notes(given: str | None) -> str | None:
    if given != "-":
        return given
    try:
        return readable(sys.stdin.read(), "standard input")
    except UnicodeDecodeError:
        raise CommandError(Exit.USAGE, "standard input is not valid UTF-8; notes are text") from None
    except OSError as error:
        raise CommandError(Exit.USAGE, f"standard input cannot be read: {error.strerror}") from None


def cancel(run_ids: RunIds, as_json: AsJson = False) -> int:
    """Ask for the end of runs; with --json one run's document, for several runs {items} with the outcome of each."""
    client = open_client()
    if len(run_ids) == 1:
        document = client.post(f"/runs/{run_ids[0]}/cancel")
        if as_json:
            emit(document)
        else:
            say(f"run {run_ids[0]} is {document['state']}")
        return Exit.OK
    return _each(run_ids, lambda run_id: str(client.post(f"/runs/{run_id}/cancel")["state"]), as_json=as_json)


def delete(run_ids: RunIds, yes: Yes = False, as_json: AsJson = False) -> int:
    """Delete ended runs with all their files and print the outcome of each. Asks for confirmation on a terminal."""
    client = open_client()
    if not yes:
        _ask(f"delete {_named(run_ids)} with all their files? This cannot be undone.")

    def remove(run_id: int) -> str:
        client.delete(f"/runs/{run_id}")
        return "deleted"

    return _each(run_ids, remove, as_json=as_json)


def _named(run_ids: Sequence[int]) -> str:
    numbers = ", ".join(str(number) for number in run_ids)
    return f"run {numbers}" if len(run_ids) == 1 else f"{len(run_ids)} runs ({numbers})"


def _ask(question: str) -> None:
    """Ask on the terminal. Raises CommandError if the answer is not yes, or standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise CommandError(Exit.USAGE, "nothing was done: not a terminal; pass --yes to confirm")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandError(Exit.USAGE, "nothing was done")


def _each(run_ids: Sequence[int], work: Callable[[int], str], *, as_json: bool) -> int:
    """Do `work` for each run once and print the outcome; the exit code is that of the first failure.

    Stops as soon as the service cannot be reached.
    """
    items: list[Document] = []
    code = Exit.OK
    for run_id in dict.fromkeys(run_ids):
        if code is Exit.UNREACHABLE:
            items.append({"run_id": run_id, "outcome": NOT_TRIED, "detail": ""})
            continue
        try:
            items.append({"run_id": run_id, "outcome": work(run_id), "detail": ""})
        except CommandError as error:
            items.append({"run_id": run_id, "outcome": str(error.document["code"]), "detail": error.message})
            code = error.code if code is Exit.OK or error.code is Exit.UNREACHABLE else code
    if as_json:
        emit({"items": items})
    else:
        for item in items:
            (note if item["detail"] else say)(f"run {item['run_id']}: {item['detail'] or item['outcome']}")
    return code
