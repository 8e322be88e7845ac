"""Rules for dependencies and log lines: packages are declared, only public names are used, actions are consistent."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ("app", "worker", "trainer", "migrations", "scripts")
OURS = (*RUNTIME, "benchmarks", "tests", "ddp_audit_probe", "language")
UNSEEN = {"httptools": "uvicorn", "uvloop": "uvicorn"}
"""Declared although nothing imports them: the library that loads each of them."""
PRIVATE_FILES = (
    "trainer/common/torch_operators.py",
    "trainer/kinds/trace/site/ddp_audit_probe/loaders.py",
    "trainer/kinds/trace/site/ddp_audit_probe/places.py",
    "trainer/kinds/trace/site/ddp_audit_probe/reductions.py",
    "trainer/kinds/trace/site/ddp_audit_probe/scaling.py",
)
"""Files that may use private names of a library: each says why, and a test detects when a name disappears."""
PUBLIC_BY_RULE = {"os._exit", "_asdict", "_fields", "_make", "_replace"}
"""Documented names that begin with an underscore only to avoid conflicts with fields, or as a warning."""
LOG_METHODS = ("debug", "info", "warning", "error", "exception", "critical")
OTHER_ACTIONS = ("add_argument", "AuditEntry")
"""Calls whose `action` is not that of a log line: argparse has its own, and stored audit log entries do not change."""
KEBAB = re.compile(r"[a-z]+(-[a-z]+)*")


def plain(requirement: str) -> str:
    """Return the normalised distribution name in a requirement such as `SQLAlchemy>=2.0`."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def declared(pyproject: str) -> tuple[set[str], dict[str, set[str]]]:
    """Return the distributions that a `pyproject.toml` requires: always, and by extra."""
    project = tomllib.loads(pyproject)["project"]
    extras = {extra: {plain(item) for item in items} for extra, items in project["optional-dependencies"].items()}
    return {plain(item) for item in project["dependencies"]}, extras


def imported(folders: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Return the third-party top-level modules that the Python files of `folders` import, each with one such file."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for name in _imports(node):
                    found.setdefault(name.partition(".")[0], path.relative_to(root).as_posix())
    return {name: path for name, path in found.items() if name not in OURS and name not in sys.stdlib_module_names}


def _imports(node: ast.AST, *, whole: bool = False) -> list[str]:
    """Return the modules an import statement names, or with `whole` the imported names, dotted."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
        return []
    return [f"{node.module}.{alias.name}" for alias in node.names] if whole else [node.module]


def dependency_problems(pyproject: str, runtime: dict[str, str], elsewhere: dict[str, str]) -> list[str]:
    """Return the packages that are imported but not declared, and those declared but not imported.

    `runtime` and `elsewhere` (benchmarks and tests) map modules to a file each, as `imported` gives them.
    """
    always, extras = declared(pyproject)
    optional = set().union(*(names for extra, names in extras.items() if extra != "dev"))
    known = packages_distributions()
    ours = {name: {plain(item) for item in known.get(name, [name])} for name in (*runtime, *elsewhere)}
    problems = [
        f"{path} imports {name}, which pyproject.toml does not declare"
        for name, path in runtime.items()
        if not ours[name] & (always | optional)
    ]
    problems += [
        f"{path} imports {name}, which pyproject.toml does not declare, not even for development"
        for name, path in elsewhere.items()
        if not ours[name] & (always | optional | extras["dev"])
    ]
    used = set().union(*(ours[name] for name in runtime)) | set(UNSEEN)
    problems += [f"pyproject.toml declares {name}, which nothing imports" for name in sorted(always - used)]
    return problems


def pin_problems(pyproject: str, constraints: str) -> list[str]:
    """Return the declared packages that the tested set does not pin."""
    always, extras = declared(pyproject)
    pinned = {plain(line) for line in constraints.splitlines() if "==" in line and not line.startswith("#")}
    return [f"constraints.txt does not pin {name}" for name in sorted(always.union(*extras.values()) - pinned)]


def private_names(name: str, tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Yield the private modules and attributes of libraries that one file uses; `own` are the names defined here."""
    if name in PRIVATE_FILES:
        return
    for node in ast.walk(tree):
        taken = [item for item in _imports(node, whole=True) if _foreign(item) and _has_private(item)]
        attribute = _attribute(node)
        if attribute is not None and _is_private(attribute[1]) and attribute[1] not in own:
            taken = [".".join(attribute)]
        for item in taken:
            if item not in PUBLIC_BY_RULE and item.rpartition(".")[2] not in PUBLIC_BY_RULE:
                yield f"{name}:{getattr(node, 'lineno', 0)}: {item} is private to its library"


def _attribute(node: ast.AST) -> tuple[str, str] | None:
    """Return (object, attribute) of `x.y` or `getattr(x, "y")`."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node.value), node.attr
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr", "setattr"}:
        asked = node.args[1]
        if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
            return ast.unparse(node.args[0]), asked.value
    return None


def _foreign(module: str) -> bool:
    return module.partition(".")[0] not in OURS


def _has_private(dotted: str) -> bool:
    return any(_is_private(part) for part in dotted.split("."))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the private names a file defines: functions, classes, variables, attributes."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr] if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"} else []
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        yield from filter(_is_private, names)


def log_problems(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield the log lines of one file without an `action`, or with one that is not lower-case words and hyphens."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        action = given.get("action")
        logged = called.startswith("log.") and called.removeprefix("log.") in LOG_METHODS
        if (
            logged and action is None and None not in given
        ):  # `**fields` contains one, which is checked where it is passed
            yield f"{name}:{node.lineno}: a log line without an action"
        if not isinstance(action, ast.Constant) or called.rpartition(".")[2] in OTHER_ACTIONS:
            continue
        if not KEBAB.fullmatch(str(action.value)):
            yield f"{name}:{node.lineno}: action {action.value!r}: write lower-case words with hyphens"


def breaches(root: Path = ROOT) -> list[str]:
    """Return every breach of these rules in the tree."""
    paths = [path for folder in OURS for path in sorted((root / folder).rglob("*.py"))]
    trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in paths}
    own = {item for tree in trees.values() for item in defined(tree)}
    found = [breach for name, tree in trees.items() for breach in private_names(name, tree, own)]
    found += [breach for name, tree in trees.items() if name.startswith(RUNTIME) for breach in log_problems(name, tree)]
    pyproject = (root / "pyproject.toml").read_text()
    found += dependency_problems(pyproject, imported(RUNTIME, root), imported(("benchmarks", "tests"), root))
    return found + pin_problems(pyproject, (root / "constraints.txt").read_text())


def main() -> int:
    """Print every breach and return 1 when there is one."""
    found = breaches()
    for breach in found:
        print(breach)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
