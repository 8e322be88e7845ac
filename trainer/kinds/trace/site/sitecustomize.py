"""Found by every Python whose PYTHONPATH begins with this folder: brings the probe in, then runs what it hides."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _run_hidden() -> None:
    """Run the `sitecustomize` that would have been found without this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    from ddp_audit_probe.entry import install

    install()
except Exception as error:  # whatever is wrong with the probe, the script runs
    sys.stderr.write(f"ddp-audit: this process is not traced: {error}\n")
_run_hidden()
