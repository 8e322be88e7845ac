"""House rules that no linter covers; prints every violation and exits 1 if there is one."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
CODE = (".py", ".html", ".js", ".css")
FORBIDDEN = (
    (re.compile(r"(?<![\w.])/(?:root|home|work)/\w"), "a path of one machine"),
    (re.compile(r"index[-]url|\"resolved\":\s*\"http"), "an address of a package registry"),
)
QUERY = re.compile(r"\b(?:session|connection|cursor|db)\.(?:exec|execute|scalars?|get|get_one|merge|add|delete)\(")
TIMED = re.compile(r"wait_for_timeout\(|(?:monotonic|perf_counter|time)\(\) - \w+ <")
INLINE = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>|\sstyle=\"|\son[a-z]+=\"")


def tracked() -> list[Path]:
    """Return the files tracked by git, and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(set(output.split("\0"))) if name and (ROOT / name).is_file()]


def breaches(path: Path) -> Iterator[str]:
    """Yield what is wrong with one file."""
    name = path.relative_to(ROOT).as_posix()
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    lines = text.count("\n")
    if path.suffix in CODE and lines > MAX_FILE_LINES:
        yield f"{name}: {lines} lines, at most {MAX_FILE_LINES}"
    for pattern, what in FORBIDDEN:
        if match := pattern.search(text):
            yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {what}: {match.group()!r}"
    if name.startswith("tests/") and path.suffix == ".py":
        for match in TIMED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: a fixed pause, or a test of how long something takes: wait for what should happen"
    if path.suffix == ".html":
        for match in INLINE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: inline script or style, which the content security policy blocks"
    if path.suffix == ".py":
        yield from python_breaches(name, text)
    if name.startswith("app/web/"):
        for match in QUERY.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: a query; it belongs to app.runs, app.storage, app.sharing or app.status"


def python_breaches(name: str, text: str) -> Iterator[str]:
    """Yield what is wrong with one Python file."""
    tree = ast.parse(text)
    if Path(name).name == "__init__.py":
        if text.strip() and not name.startswith("tests/support/"):
            yield f"{name}: must be empty; import from the defining module"
        return
    if not ast.get_docstring(tree):
        yield f"{name}: no module docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if name.startswith("migrations/versions/"):
                continue  # a migration is a flat list of statements
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"


def main() -> int:
    """Check every file, the file map, and the use of libraries."""
    found = [breach for path in tracked() for breach in breaches(path)]
    for script in ("file_map.py", "surface.py"):
        argv = [sys.executable, str(ROOT / "scripts" / script)]
        done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True)
        found += done.stdout.splitlines() or [f"scripts/{script} ended with {done.returncode}"] * (done.returncode != 0)
    for breach in found:
        print(breach)
    print(f"house rules: {len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
