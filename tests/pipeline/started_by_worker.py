"""A stand-in for a worker and for the run that it starts: `started_by_worker.py worker|run DIRECTORY heeds|deaf`.

The worker starts the run with its output in a pipe, as Prefect's does. The run writes its pid, works under a lifeline,
and writes why it ended; a deaf one never asks.
"""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

PATIENCE = timedelta(minutes=5)


def work(cancel: object, directory: Path, how: str) -> str:
    assert callable(cancel)
    (directory / "working").touch()
    while how == "deaf" or not cancel():
        time.sleep(0.05)
    return str(cancel())


def main() -> None:
    role, directory, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if role == "worker":
        command = [sys.executable, __file__, "run", str(directory), how]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        (directory / "pid").write_text(str(run.pid))
        run.communicate()
        return
    # Not above: Prefect takes seconds to import, and the worker needs none of it.
    from lastgood_prefect.lifeline import lifeline

    if (directory / "late").exists():
        # The worker dies before this run watches it.
        (directory / "waits").touch()
        while (directory / "late").exists():
            time.sleep(0.05)
    with lifeline(PATIENCE) as line:
        why = line.run(lambda cancel: work(cancel, directory, how))
        # As Prefect's console does; into a pipe without a reader it would be the last thing that is done.
        print("ended", flush=True)
        (directory / "ended").write_text(why)


if __name__ == "__main__":
    main()
