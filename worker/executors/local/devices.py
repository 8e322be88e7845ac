"""The devices of this machine, found by `trainer.probe` in a separate process: the worker never imports torch."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from app.settings import Settings
from trainer.contract.environment import EnvironmentReport
from trainer.contract.placement import Offer
from worker.executors.local.warm import Child, Starter
from worker.log import log

BUSY_BYTES: Final = 1 << 30
"""Even an unused GPU shows a few hundred MiB used by the driver."""
PROBE_SECONDS: Final = 180.0
AGAIN_SECONDS: Final = 60.0
"""Seconds until the next probe after a failed one."""
BUSY_FRESH_SECONDS: Final = 3.0
GPU_FILES: Final = ("nvidia[0-9]*", "dxg")
SMI_SECONDS: Final = 10.0


class LocalDevices:
    """The machine's devices, as far as they are known."""

    def __init__(
        self, settings: Settings, starter: Starter, *, probe: tuple[str, ...] | None = None, dev: Path = Path("/dev")
    ) -> None:
        self._argv = probe or (sys.executable, "-m", "trainer.probe", "--data-dir", str(settings.data_dir))
        self._starter = starter
        self._has_gpu_files = any(any(dev.glob(pattern)) for pattern in GPU_FILES)
        self._process: Child | None = None
        self._began = 0.0
        self.ended_at: float | None = None
        """Monotonic time at which the last probe ended."""
        self._busy: tuple[float, dict[int, str]] = (0.0, {})
        self.report: EnvironmentReport | None = None

    @property
    def document(self) -> dict[str, Any] | None:
        """The devices published with the heartbeat; None until the first probe has finished."""
        return None if self.report is None else self.report.model_dump(mode="json")

    def offer(self) -> Offer:
        """Return the GPUs found, unknown until the probe has finished; a machine without GPU device files has none."""
        if self.report is not None:
            return Offer(gpus=tuple(gpu.index for gpu in self.report.gpus), nccl=self.report.nccl)
        return Offer(gpus=None if self._has_gpu_files else ())

    def indices(self) -> dict[str, int]:
        """Return the index of each GPU, by UUID without prefix."""
        return {gpu.uuid.removeprefix("GPU-"): gpu.index for gpu in self.report.gpus} if self.report else {}

    def poll(self) -> bool:
        """Start the probe if necessary, and check whether it has finished; return True if there are new results."""
        if self.report is not None:
            return False
        if self._process is None:
            if self._due() and not self._starter.warming():  # otherwise it would import torch at the same time
                self._begin()
            return False
        code = self._process.poll()
        if code is None and time.monotonic() - self._began > PROBE_SECONDS:
            self._process.kill()
            code = -signal.SIGKILL
        return False if code is None else self._finish(code)

    def close(self) -> None:
        """End a running probe."""
        if self._process is not None:
            self._process.kill()
            if isinstance(self._process, subprocess.Popen):
                self._process.wait()
            self._output.unlink()
            self._process = None

    def busy(self) -> dict[int, str]:
        """Return the GPUs in use, and how; not older than a few seconds."""
        if self.report is None or not self.report.gpus:
            return {}
        if time.monotonic() - self._busy[0] > BUSY_FRESH_SECONDS:
            self._busy = (time.monotonic(), self._look())
        return self._busy[1]

    def _look(self) -> dict[int, str]:
        memory = _smi("--query-gpu=uuid,memory.used")
        if memory is None:
            used = {gpu.index: gpu.total_bytes - gpu.free_bytes for gpu in self.report.gpus} if self.report else {}
            # These figures include the probe's own context, so they count only above twice the usual limit.
            return {gpu: f"{size >> 20} MiB of memory in use" for gpu, size in used.items() if size > 2 * BUSY_BYTES}
        return in_use(memory, _smi("--query-compute-apps=gpu_uuid,pid") or "", self.indices())

    def _due(self) -> bool:
        return self.ended_at is None or time.monotonic() - self.ended_at > AGAIN_SECONDS

    def _begin(self) -> None:
        self._began = time.monotonic()
        descriptor, name = tempfile.mkstemp(prefix="ddp-audit-probe-")  # not a pipe, which could fill up
        os.close(descriptor)
        self._output = Path(name)
        try:
            self._process = self._starter.start([*self._argv], {"PYTHONSAFEPATH": "1"}, cwd="/", out=name)
        except OSError as error:
            self._output.unlink()
            self.ended_at = time.monotonic()
            log.error("the probe cannot be started", action="probe-failed", error=str(error))

    def _finish(self, exit_code: int) -> bool:
        self._process, self.ended_at = None, time.monotonic()
        text = self._output.read_text(errors="replace")
        self._output.unlink()
        try:
            self.report = EnvironmentReport.model_validate(json.loads(text[text.index("{") :]))
        except (ValueError, ValidationError):
            log.error("the probe failed", action="probe-failed", exit_code=exit_code, output=text[-500:])
            return False
        log.info("devices found", action="probe-done", gpus=len(self.report.gpus), cpu=self.report.cpu)
        return True


def in_use(memory: str, processes: str, uuids: Mapping[str, int]) -> dict[int, str]:
    """Return the GPUs in use from two nvidia-smi listings, (uuid, MiB used) and (uuid, pid); `uuids` maps to index."""
    found: dict[int, str] = {}
    _each(memory, uuids, lambda gpu, mib: _note_memory(found, gpu, mib))
    pids: dict[int, list[str]] = {}
    _each(processes, uuids, lambda gpu, pid: pids.setdefault(gpu, []).append(pid))
    return found | {gpu: f"process {', '.join(listed)}" for gpu, listed in pids.items()}


def _note_memory(found: dict[int, str], gpu: int, mib: str) -> None:
    if mib.isdigit() and int(mib) << 20 > BUSY_BYTES:
        found[gpu] = f"{mib} MiB of memory in use"


def _each(listing: str, uuids: Mapping[str, int], take: Callable[[int, str], None]) -> None:
    for line in listing.splitlines():
        uuid, _, value = line.partition(",")
        gpu = uuids.get(uuid.strip().removeprefix("GPU-"))
        if gpu is not None:
            take(gpu, value.strip())


def _smi(query: str) -> str | None:
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
