"""Start-up time and memory of the web process.

    python -m benchmarks.startup [--starts 5]

Starts `ddp-audit serve --no-worker` on an existing database and prints the median time to the first response of
`/healthz` and `/`, the resident memory and CPU time after both, and the time of `ddp-audit --help`.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from benchmarks.machine import header

COMMAND = Path(sys.executable).with_name("ddp-audit")


def start(data_dir: str) -> tuple[float, float, float, float]:
    """Return seconds to the first response and to the first page, resident MiB and CPU seconds after both."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    argv = [str(COMMAND), "serve", "--no-worker", "--port", str(port), "--data-dir", data_dir]
    began = time.perf_counter()
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        first = _until(f"http://127.0.0.1:{port}/healthz", began)
        page = _until(f"http://127.0.0.1:{port}/", began)
        memory = psutil.Process(process.pid).memory_info().rss / 2**20
        times = psutil.Process(process.pid).cpu_times()
    finally:
        process.terminate()
        process.wait()
    return first, page, memory, times.user + times.system


def _until(url: str, began: float) -> float:
    while True:
        try:
            assert httpx.get(url).status_code == 200
            return time.perf_counter() - began
        except httpx.TransportError:
            time.sleep(0.01)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start(folder)  # creates the database and fills the file system caches
        measured = [start(folder) for _ in range(options.starts)]
    times = []
    for _ in range(options.starts):
        began = time.perf_counter()
        subprocess.run([str(COMMAND), "--help"], stdout=subprocess.DEVNULL, check=True, env=os.environ)
        times.append(time.perf_counter() - began)
    first, page, memory, used = (statistics.median(column) for column in zip(*measured, strict=True))
    print(header(f"n = {options.starts} starts, medians", "fastapi", "uvicorn", "sqlmodel"))
    print(f"first answer {first:.2f} s   first page {page:.2f} s   resident {memory:.0f} MiB   processor {used:.2f} s")
    print(f"ddp-audit --help {statistics.median(times):.2f} s")


if __name__ == "__main__":
    main()
