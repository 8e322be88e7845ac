"""A run's audit as Markdown, ready to paste into a report."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.documents import Document
from app.formats import number
from app.runs.results.bounds import bound, measured

WORDS = {True: "pass", False: "fail", None: "open"}


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table; cells are text or numbers, escaped so that no cell leaves its column."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell(value) for value in line) + " |" for line in lines)


def cell(value: Any) -> str:
    """Return one escaped cell: line breaks and bars would end it, and tags would be rendered as HTML."""
    text = " ".join(number(value).split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def audit(run: Mapping[str, Any] | Document, result: Mapping[str, Any]) -> str:
    """Return verdict, checks, and a table for every group of numbers in the summary."""
    name = f" ({cell(run['name'])})" if run["name"] else ""
    environment = result["environment"]
    where = f"{environment['backend']}, {environment['world_size']} ranks, {cell(environment['device'])}"
    parts = [
        f"**Run {run['id']}{name}: {run['kind']}, verdict {result['verdict']}** on {where}.",
        table(
            ["check", "result", "measured", "required", "unit"],
            [
                [check["name"], WORDS[check["passed"]], measured(check), bound(check), check["unit"]]
                for check in result["checks"]
            ],
        ),
    ]
    if result.get("diagnosis"):
        parts.append(_diagnosis(result["diagnosis"]))
    parts += [table(*group) for group in summary_tables(result["summary"])]
    return "\n\n".join(parts) + "\n"


def _diagnosis(found: Mapping[str, Any]) -> str:
    lines = [f"**Diagnosis: {found['status']}.**"]
    lines += [f"- `{cause['name']}`: {cell(cause['explanation'])}" for cause in found["causes"]]
    lines += [f"- Suggestion: {cell(found['suggestion'])}"] if found["suggestion"] else []
    return "\n".join(lines)


def summary_tables(summary: Mapping[str, Any]) -> list[tuple[list[str], list[list[Any]]]]:
    """Return (columns, rows) for every summary entry that is a mapping of mappings, such as numbers per mode."""
    tables = []
    for name, group in summary.items():
        if not is_table(group):
            continue
        columns = list(dict.fromkeys(key for row in group.values() for key in row if _plain(row[key])))
        rows = [[key, *(row.get(column) for column in columns)] for key, row in group.items()]
        tables.append(([name.removesuffix("s"), *columns], rows))
    return tables


def is_table(value: Any) -> bool:
    """Return whether a summary entry is a mapping of mappings."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(row, Mapping) for row in value.values())


def _plain(value: Any) -> bool:
    return not isinstance(value, list | dict)
