"""Checks docs/files.md (every source file with the first sentence of its docstring) and the README's list of rooms."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
LISTING = ROOT / "docs" / "files.md"
HEAD = "# Every file\n\nOne line per file, from its own docstring. Written by `make format`, checked by `make check`.\n"
MAPPED = ("app/", "worker/", "trainer/", "migrations/", "templates/", "benchmarks/", "scripts/")
PAGES = "templates/pages/"
"""One folder per page; these are not rooms."""
ROOM = re.compile(r"^- `([\w/-]+/)`: \S", re.MULTILINE)


def described(path: Path) -> str:
    """Return a one-line description of a file, from its docstring or its first comment."""
    text = path.read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        match = re.match(r"\s*(?:\{#|/\*|//|<!--)\s*(.*?)\s*(?:#\}|\*/|-->|\n)", text, re.DOTALL)
        text = match.group(1) if match else ""
    line = re.sub(r"\s+", " ", text.split("\n\n")[0]).strip()
    return re.split(r"(?<=[.!?])\s", line)[0]


def files() -> list[str]:
    """Return the source files tracked by git, and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(
        name
        for name in set(output.splitlines())
        if name.startswith(MAPPED)
        and name.endswith((".py", ".html", ".js", ".css"))
        and not name.endswith("__init__.py")
        and (ROOT / name).is_file()
    )


def rendered(names: list[str]) -> tuple[str, list[str]]:
    """Return (the listing as Markdown, files without a description)."""
    lines, mute, folder = [], [], ""
    for name in names:
        parent, base = name.rsplit("/", 1)
        if parent != folder:
            lines += ["", f"## `{parent}/`", ""]
            folder = parent
        description = described(ROOT / name)
        if not description:
            mute.append(name)
        lines.append(f"- `{base}`: {description}")
    return HEAD + "\n".join(lines) + "\n", mute


def room_problems(names: list[str], readme: str) -> list[str]:
    """Return the folders missing from the README's list of rooms, and listed ones that do not exist."""
    there = {f"{name.rsplit('/', 1)[0]}/" for name in names}
    there = {room for room in there if not room.startswith(PAGES) or room == PAGES}
    listed = set(ROOM.findall(readme))
    missing = [f"README.md: the list of rooms lacks `{room}`" for room in sorted(there - listed)]
    return missing + [f"README.md: room `{room}` does not exist" for room in sorted(listed - there)]


def main() -> int:
    """Compare the listing with the tree, or rewrite it with `--write`."""
    names = files()
    text, mute = rendered(names)
    problems = [f"{name}: no description in its docstring or first comment" for name in mute]
    problems += room_problems(names, README.read_text())
    if "--write" in sys.argv:
        LISTING.write_text(text)
    elif not LISTING.exists() or LISTING.read_text() != text:
        problems.append("docs/files.md is out of date; run `make format`")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
