"""Cost of the trace in a training script that nobody changed.

Run: `python -m benchmarks.tracing [--pairs 40] [--only transformer-1 ...] [--most-steps 100000]`
The same two-rank training twice at once, traced by the real `sitecustomize` and untraced: short blocks of updates in
turns, the other ranks wait meanwhile. The first update after a change of sides is not timed: it finds the caches filled
by the other side, which a training alone never does. Printed: median time of an update on both sides, the ratio of each
start (the median of its pairs) and their median, and the probe's own count of the time spent in it. Goal: at most 2 %.
Two processes of the same program differ by some percent, so many starts count, not many pairs. Next to it the traced
ranks alone, their probe switched on and off in turns: what its pieces cost, without the hook that averages gradients,
and without that difference. Then tiny updates by the ten thousand: memory of a rank and size of its files. Then digests
of large models.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from benchmarks.ranks import RANKS, ROOT, header

SITE = ROOT / "trainer" / "kinds" / "trace" / "site"
GOAL = 0.02
STARTS = 10
"""Processes of each side, one after the other: where a process's memory lies changes its speed by some percent."""
MEMORY = {"MALLOC_MMAP_MAX_": 0, "MALLOC_TRIM_THRESHOLD_": 1 << 32, "MALLOC_TOP_PAD_": 1 << 28}
"""On both sides memory that was freed is kept: else page faults come and go by chance, 1,000 to 10,000 an update."""
WARM_UP = 40
"""Updates before the first pair: the first 20 windows of a trace are all looked at."""
BLOCK = 2
"""Timed updates; one more comes before them."""
MEBIBYTE = 1 << 20
LARGE = (1_000_000, 10_000_000, 100_000_000)
SETTINGS = {
    "transformer-1": ("transformer", 1),
    "transformer-4": ("transformer", 4),
    "images-1": ("images", 1),
    "images-4": ("images", 4),
}
"""Name -> model, micro-batches an update."""


class Block(NamedTuple):
    """Seconds of a few updates: by the clock, of processor time, and in the probe by its own count."""

    seconds: float
    processor: float
    probe: float


class Side:
    """The ranks of one training, traced or untraced, driven over their standard streams."""

    def __init__(self, processes: Sequence["subprocess.Popen[str]"], folder: Path) -> None:
        self._processes, self.folder = processes, folder

    def run(self, updates: int, *, probe: bool = True) -> list[dict[str, Any]]:
        """Train on; return what each rank says: `seconds` of the updates, `probe` seconds in them, `resident` bytes.

        `probe` false: with the pieces of the probe switched off.
        """
        for process in self._processes:
            _stream(process.stdin).write(f"{updates} {'on' if probe else 'off'}\n")
            _stream(process.stdin).flush()
        answers = [_stream(process.stdout).readline() for process in self._processes]
        return [json.loads(answer) for answer in answers]

    def block(self, *, probe: bool = True) -> Block:
        """Train one block of updates; the mean of the ranks counts."""
        self.run(1, probe=probe)
        answers = self.run(BLOCK, probe=probe)
        return Block(*(statistics.mean(answer[name] for answer in answers) for name in Block._fields))

    def written(self) -> dict[str, int]:
        """Return file -> bytes of what rank 0 wrote."""
        return {path.suffix: path.stat().st_size for path in sorted(self.folder.glob("rank0.*"))}


@contextmanager
def side(model: str, accumulation: int, *, traced: bool) -> Iterator[Side]:
    """Start the ranks of a training and yield them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        own = {"WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        own |= MEMORY | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": f"{SITE}:{ROOT}" if traced else ROOT}
        variables = {**os.environ, **{name: str(value) for name, value in own.items()}}
        variables |= {"DDP_AUDIT_TRACE": folder} if traced else {}
        argv = [sys.executable, "-m", "benchmarks.traced_training", model, str(accumulation)]
        with ExitStack() as stack:
            processes = [
                stack.enter_context(
                    subprocess.Popen(
                        argv,
                        cwd=ROOT,
                        env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
                for rank in range(RANKS)
            ]
            yield Side(processes, Path(folder))  # leaving closes the pipes, upon which the ranks end


def _stream(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise RuntimeError("started without pipes")
    return stream


def compare(model: str, accumulation: int, pairs: int) -> None:
    """Print both sides of one training, then the traced side with its probe on and off."""
    count = max(1, pairs // STARTS)
    starts = [_start(model, accumulation, count) for _ in range(STARTS)]
    apart, within = ([start[place] for start in starts] for place in (0, 1))
    print(header(f"trace: {model}, {accumulation} micro-batches an update, {STARTS} starts", STARTS * count))
    for title, found in (("traced and untraced", apart), ("probe on and off, same processes", within)):
        print(f"{title}:")
        for name in ("seconds", "processor"):
            _compared(name, [[(getattr(left, name), getattr(right, name)) for left, right in each] for each in found])
    plain = statistics.median(right.seconds for each in apart for _, right in each)
    for kind, average in (("median", statistics.median), ("mean, with sampled steps", statistics.mean)):
        probe = average([left.probe for each in apart for left, _ in each])
        print(f"in the probe, by its own count: {probe / BLOCK * 1000:.3f} ms an update, {probe / plain:.2%} ({kind})")
    print(flush=True)


Pairs = list[tuple[Block, Block]]


def _start(model: str, accumulation: int, pairs: int) -> tuple[Pairs, Pairs]:
    """Return the blocks of one start of both sides: traced and untraced, then with the probe on and off."""
    with side(model, accumulation, traced=True) as traced, side(model, accumulation, traced=False) as plain:
        for each in (traced, plain):
            each.run(WARM_UP)
        apart = [_turn(number, traced.block, plain.block) for number in range(pairs)]
        within = [_turn(number, traced.block, lambda: traced.block(probe=False)) for number in range(pairs)]
    return apart, within


def _turn(number: int, first: Callable[[], Block], second: Callable[[], Block]) -> tuple[Block, Block]:
    """Run both, every other time the second before the first."""
    if number % 2:
        right = second()
        return first(), right
    left = first()
    return left, second()


def _compared(name: str, starts: Sequence[Sequence[tuple[float, float]]]) -> None:
    """Print one kind of time on both sides, with the ratios of the starts."""
    pairs = [pair for each in starts for pair in each]
    on, off = (statistics.median(pair[place] for pair in pairs) / BLOCK * 1000 for place in (0, 1))
    costs = [statistics.median(first / second - 1 for first, second in each) for each in starts]
    quarters = statistics.quantiles(costs, n=4)
    noise = (quarters[2] - quarters[0]) / 2 / len(costs) ** 0.5
    judged = "reached" if quarters[1] <= GOAL else "MISSED"
    judged = judged if noise < GOAL else "the machine is too noisy for a result"
    label = {"seconds": "by the clock", "processor": "processor time"}[name]
    print(
        f"{label:15}{on:8.1f} and {off:8.1f} ms an update: cost {quarters[1]:+.2%} (goal {GOAL:.0%}: {judged}); "
        f"half of the starts {quarters[0]:+.2%} to {quarters[2]:+.2%}"
    )


def grow(most: int) -> None:
    """Print memory and files of a rank after more and more tiny updates."""
    marks = [count for count in (1000, 10_000, 50_000, 100_000) if count < most] + [most]
    print(f"tiny updates, rank 0: resident memory, and what it wrote ({RANKS} ranks)")
    with side("tiny", 1, traced=True) as traced, side("tiny", 1, traced=False) as plain:
        done, spent = 0, 0.0
        for mark in marks:
            answer, bare = traced.run(mark - done)[0], plain.run(mark - done)[0]
            spent, done = spent + answer["probe"], mark
            files = ", ".join(f"{name} {size:,}" for name, size in traced.written().items())
            resident, without = (item["resident"] / MEBIBYTE for item in (answer, bare))
            print(
                f"{mark:8,} updates: {resident:7.1f} MiB traced, {without:7.1f} untraced; "
                f"probe {spent / done * 1e6:.0f} us an update; bytes: {files}",
                flush=True,
            )


def digest_large() -> None:
    """Print what one digest of all parameters costs, next to one plain update of them."""
    sys.path.insert(0, str(SITE))
    from ddp_audit_probe import digests

    torch.set_num_threads(1)
    print("\ndigest of a model's parameters, one thread")
    for elements in LARGE:
        piece = digests.piece_at(1, 4 * elements)
        values, gradient = torch.randn(elements), torch.randn(elements)
        named = [("weight", values)]
        whole, sampled, update = (
            _fastest(action)
            for action in (
                lambda named=named: digests.of_named(torch, named),
                lambda named=named, piece=piece: digests.of_named(torch, named, piece),
                lambda values=values, gradient=gradient: values.add_(gradient, alpha=-1e-6),
            )
        )
        print(
            f"{elements:12,} parameters: whole {whole * 1000:7.1f} ms, at a sampled step {sampled * 1000:7.1f} ms, "
            f"update by SGD alone {update * 1000:7.1f} ms",
            flush=True,
        )


def _fastest(action: Any) -> float:
    found = []
    for _ in range(3):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="at least 2; 0 leaves this part out")
    parser.add_argument("--most-steps", type=int, default=100_000, help="tiny updates; 0 leaves this part out")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="|".join(SETTINGS))
    options = parser.parse_args()
    if options.pairs == 1 or options.pairs < 0:
        parser.error("--pairs must be 0 or at least 2")
    for name in options.only if options.pairs else ():
        compare(*SETTINGS[name], options.pairs)
    if options.most_steps > 0:
        grow(options.most_steps)
    digest_large()


if __name__ == "__main__":
    main()
