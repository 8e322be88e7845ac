"""The number of CPUs that a process may use, not that of the machine."""

import os
import subprocess
import sys

import pytest

CODE = "from trainer.common.machine import usable_cpus; print(usable_cpus())"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("allowed", [1, 2])
def test_restricted_process_counts_what_it_may_use(allowed: int) -> None:
    chosen = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:allowed])
    code = f"import os; os.sched_setaffinity(0, {{{chosen}}}); {CODE}"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(shown.stdout) == allowed
