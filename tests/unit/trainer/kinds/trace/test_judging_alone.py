"""Judging needs no torch: it runs on the machine of whoever brings a folder in."""

import subprocess
import sys
from pathlib import Path

from tests.support.traces import right


def test_judging_imports_no_torch(tmp_path: Path) -> None:
    right(tmp_path).save()
    code = (
        "import sys; from pathlib import Path; from trainer.kinds.trace.judge.judging import judge; "
        "from trainer.kinds.trace.params import TraceParams; "
        f"print(judge(Path({str(tmp_path)!r}), TraceParams(), 0).verdict); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "pass\n")
