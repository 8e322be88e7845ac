"""Keeps the README's map of files true: every source file with the first sentence of its own docstring."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- map: begin (make format) -->", "<!-- map: end -->"
MAPPED = ("app/", "worker/", "trainer/", "migrations/", "templates/", "benchmarks/", "scripts/")


def described(path: Path) -> str:
    """Return one line about a file, taken from its docstring or its first comment."""
    text = path.read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        match = re.match(r"\s*(?:\{#|/\*|//|<!--)\s*(.*?)\s*(?:#\}|\*/|-->|\n)", text, re.DOTALL)
        text = match.group(1) if match else ""
    line = re.sub(r"\s+", " ", text.split("\n\n")[0]).strip()
    return re.split(r"(?<=[.!?])\s", line)[0]


def files() -> list[str]:
    """Return the files the map names."""
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


def rendered() -> tuple[str, list[str]]:
    """Return (the map as Markdown, files without a description)."""
    lines, mute, folder = [], [], ""
    for name in files():
        parent, base = name.rsplit("/", 1)
        if parent != folder:
            lines += ["", f"**`{parent}/`**", ""]
            folder = parent
        description = described(ROOT / name)
        if not description:
            mute.append(name)
        lines.append(f"- `{base}`: {description}")
    return "\n".join(lines[1:]), mute


def main() -> int:
    """Compare the map with the tree, or rewrite it with `--write`."""
    map_text, mute = rendered()
    readme = README.read_text()
    head, rest = readme.split(BEGIN)
    old, tail = rest.split(END)
    problems = [f"{name}: no description in its docstring or first comment" for name in mute]
    if "--write" in sys.argv:
        README.write_text(f"{head}{BEGIN}\n{map_text}\n{END}{tail}")
    elif old.strip() != map_text.strip():
        problems.append("README.md: the map of files is out of date; run `make format`")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
