"""Requests per second and latency of classifying one 32x32 JPEG over HTTP, with the load generator on the same cores.

`python -m benchmarks.classify [--seconds S] [--rounds N]` starts the real service on a free port with its own data
directory, one passing run and its model (random weights cost as much as trained ones), then lets a second
process send images over keep-alive connections, alternately from 1 and from 16 clients. Prints medians over the
rounds, with machine and versions.

Targets: at least 250 requests/s from 16 clients, p50 at most 6 ms from one, the model on one thread.
Measured on two cores of an AMD EPYC (Python 3.11.7, torch 2.14.1, uvicorn 0.54.0), with other work at lower priority,
medians of 3 rounds of 2 s: 1 client 218/s, p50 4.1 ms, p95 8.0 ms (n 1,357); 16 clients 324/s, p50 49 ms, p95 59 ms
(n 2,000).
"""

import argparse
import asyncio
import io
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from benchmarks.machine import header

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BOUNDARY = "benchmark-boundary"
SERVE = """
import uvicorn
from app.main import create_app
from app.settings import load_settings
settings = load_settings()
uvicorn.run(create_app(settings), host=settings.host, port=settings.port, log_level="warning", access_log=False)
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    options.add_argument("--rounds", type=int, default=5, help="measurements per number of clients")
    options.add_argument("--load", nargs=2, type=int, metavar=("PORT", "CLIENTS"), help=argparse.SUPPRESS)
    options.add_argument("--prepare", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.prepare:
        prepare(given.prepare)
    elif given.load:
        print(json.dumps(asyncio.run(load(given.load[0], given.load[1], given.seconds))))
    else:
        with tempfile.TemporaryDirectory() as folder:
            report(measure(Path(folder), given.seconds, given.rounds))


def measure(data_dir: Path, seconds: float, rounds: int) -> dict[int, list[dict[str, float]]]:
    subprocess.run([sys.executable, "-m", "benchmarks.classify", "--prepare", str(data_dir)], check=True)
    port = free_port()
    environment = {**os.environ, "DDP_AUDIT_DATA_DIR": str(data_dir), "DDP_AUDIT_PORT": str(port)}
    service = subprocess.Popen([sys.executable, "-c", SERVE], env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        measured: dict[int, list[dict[str, float]]] = {1: [], 16: []}
        load_once(port, 16, 1.0)  # starts the child and fills its caches
        for _ in range(rounds):
            for clients, results in measured.items():
                results.append(load_once(port, clients, seconds))
        return measured
    finally:
        service.terminate()
        service.wait()


def prepare(folder: str) -> None:
    """Create a data directory with one passing run, in a separate process because it needs torch."""
    import torch

    from app.clock import now
    from app.db import create_database_engine, write_session
    from app.inference.choose import model_path
    from app.runs.models import Run
    from app.schema import migrate
    from app.settings import load_settings
    from trainer.common.model_file import save_model
    from trainer.kinds.cifar.train.model import CifarNet

    settings = load_settings(data_dir=folder)
    migrate(settings)
    run = Run(
        kind="cifar", params={"mode": "both"}, state="succeeded", reason="completed", verdict="pass", created_at=now()
    )
    with write_session(create_database_engine(settings)) as session:
        session.add(run)
        session.flush()
        path = model_path(settings.runs_dir, int(run.id or 0), run.kind, run.params)
    path.parent.mkdir(parents=True)
    torch.manual_seed(47)
    save_model(path, CifarNet(len(CLASSES)), classes=CLASSES, seed=47)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the service did not start within a minute")


def load_once(port: int, clients: int, seconds: float) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.classify",
        "--load",
        str(port),
        str(clients),
        "--seconds",
        str(seconds),
    ]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


async def load(port: int, clients: int, seconds: float) -> dict[str, float]:
    request = http_request()
    latencies: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(*(client(port, request, started + seconds, latencies) for _ in range(clients)))
    elapsed = time.perf_counter() - started
    cuts = statistics.quantiles(latencies, n=20)
    return {"rate": len(latencies) / elapsed, "p50": cuts[9] * 1e3, "p95": cuts[18] * 1e3, "n": len(latencies)}


def http_request() -> bytes:
    picture = io.BytesIO()
    Image.radial_gradient("L").resize((32, 32)).convert("RGB").save(picture, "JPEG", quality=90)
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
    body = head.encode() + picture.getvalue() + f"\r\n--{BOUNDARY}--\r\n".encode()
    return (
        f"POST /api/v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    ).encode() + body


async def client(port: int, request: bytes, until: float, latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (sent := time.perf_counter()) < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(length.split(b":")[1]))
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{head.decode()}{body.decode()}")
        latencies.append(time.perf_counter() - sent)
    writer.close()


def report(measured: dict[int, list[dict[str, float]]]) -> None:
    print(header("medians of rounds", "torch", "pillow", "fastapi", "uvicorn"))
    print("clients  requests/s  p50 ms  p95 ms   n (medians of rounds; n over all)")
    for clients, results in measured.items():
        rate, p50, p95 = (statistics.median(result[key] for result in results) for key in ("rate", "p50", "p95"))
        print(f"{clients:7d}  {rate:10.0f}  {p50:6.2f}  {p95:6.2f}  {sum(int(result['n']) for result in results)}")


if __name__ == "__main__":
    main()
