"""Locations of the product's own files, in a checkout or installed, and how its modules are started as processes."""

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent
STATIC: Final = PACKAGE / "static"
TEMPLATES: Final = PACKAGE / "templates"
"""In a checkout a link to the top-level folder; in a wheel the files themselves."""


@cache
def checkout() -> Path | None:
    """Return the checkout this program runs from, None if it is installed like any other package."""
    return checkout_of(PACKAGE)


def checkout_of(package: Path) -> Path | None:
    """Return the folder around `package` if it is a checkout, which contains the product's own pyproject.toml."""
    import tomllib

    try:
        document = tomllib.loads((package.parent / "pyproject.toml").read_text())
    except (OSError, ValueError):
        return None
    return package.parent if document.get("project", {}).get("name") == "ddp-audit" else None


def default_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `var` in a checkout, else the user's data directory by the XDG base directory specification.

    Raises ValueError if neither is known.
    """
    root = checkout()
    if root is not None:
        return root / "var"
    given = Path(environment.get("XDG_DATA_HOME", ""))
    if given.is_absolute():  # the specification says to ignore relative paths
        return given / "ddp-audit"
    try:
        return Path.home() / ".local" / "share" / "ddp-audit"
    except RuntimeError:
        raise ValueError("this user has no home directory: set DDP_AUDIT_DATA_DIR") from None


def module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """Return argv that runs a module of the product; use it with `module_environment`."""
    # Without -P the working folder would come first, and a folder `app` in it would be taken for the product's.
    return (sys.executable, "-P", "-m", module, *arguments)


def module_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment`, extended so that modules of the product are found: a checkout need not be installed."""
    root = checkout()
    paths = [*([] if root is None else [str(root)]), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(environment)
