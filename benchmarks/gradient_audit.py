"""Time and memory of a gradient audit of a model with ten million parameters.

    python -m benchmarks.gradient_audit [--repeat 3]

Two ranks, three windows, executed by the command itself: once with the right loop, once with a mistake that is
diagnosed. Printed: seconds by the clock, and the largest memory of all its processes together (proportional set size,
which counts shared pages once), sampled five times a second. Goal: 60 s and 2 GB.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.large_targets import Large, LargeRankMean
from benchmarks.machine import header

COMMAND = Path(sys.executable).with_name("ddp-audit")
ROOT = Path(__file__).resolve().parents[1]
SAMPLE_SECONDS = 0.2


def audit(name: str, folder: str) -> tuple[float, float, float, str]:
    """Return seconds, peak GB together, peak GB of one process, and verdict with the names of mistakes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DDP_AUDIT_")}
    environment |= {
        "DDP_AUDIT_DATA_DIR": folder,
        "DDP_AUDIT_TARGETS": "benchmarks.large_targets:Large,benchmarks.large_targets:LargeRankMean",
        "PYTHONPATH": str(ROOT),
    }
    argv = [str(COMMAND), "run", "gradient-audit", "-p", f"target={name}", "--json"]
    began, together, single = time.perf_counter(), 0.0, 0.0
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            sizes = _sizes(process.pid)
            together, single = max(together, sum(sizes)), max(single, max(sizes, default=0.0))
            time.sleep(SAMPLE_SECONDS)
        seconds = time.perf_counter() - began
        document = json.load(process.stdout)  # type: ignore[arg-type]
    result = document["result"]
    causes = [cause["name"] for cause in result["diagnosis"]["causes"]]
    told = f"{result['verdict']} {' '.join(causes)}, {result['summary']['components']} components"
    return seconds, together, single, told


def _sizes(pid: int) -> list[float]:
    found = []
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
    for process in tree:
        try:
            found.append(process.memory_full_info().pss / 1e9)
        except psutil.Error:
            continue
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(header(f"n = {options.repeat} audits each, medians; memory: the largest", "torch"))
    for target in (Large, LargeRankMean):
        with tempfile.TemporaryDirectory() as folder:
            rows = [audit(target.name, folder) for _ in range(options.repeat)]
        seconds = statistics.median(row[0] for row in rows)
        together, single = (max(row[place] for row in rows) for place in (1, 2))
        print(f"{target.name:16} {seconds:5.1f} s   {together:.2f} GB together, {single:.2f} GB one   {rows[0][3]}")


if __name__ == "__main__":
    main()
