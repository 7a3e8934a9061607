"""A job without torch: an agent that restarts its ranks as torchrun does, and ranks that publish numbers.

    python fake_job.py [--world-size N] [--save-every N] [--agent HOW] [--rank HOW] [--once-dead HOW]

Ranks lead sessions of their own and do not mind the death of their agent, like torchrun's. What they do wrong is named:
`--agent` for the agent, `--rank` for every life, `--once-dead` for the lives after the first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

MONITOR_SECONDS = 0.02


def agent(asked: argparse.Namespace) -> int:
    """Start the ranks, and start them all again when one has ended badly."""
    meeting = Path(os.environ["HOME"]) / f"meeting-{os.getpid()}"
    for attempt in range(1 + asked.restarts):
        if attempt and asked.agent == "hangs":
            time.sleep(1000)
        place = meeting / str(attempt)
        place.mkdir(parents=True)
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv, "--is-rank"],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "MEETING": str(place),
                    "TORCHELASTIC_RESTART_COUNT": str(attempt),
                },
                start_new_session=True,
            )
            for rank in range(asked.world_size)
        ]
        while not any(rank.poll() for rank in ranks) and any(rank.poll() is None for rank in ranks):
            time.sleep(MONITOR_SECONDS)
        if all(rank.poll() == 0 for rank in ranks):
            return 0
        if asked.agent != "leaves survivors":
            for rank in ranks:
                rank.terminate()
            for rank in ranks:
                rank.wait()
        if asked.agent == "gives up":
            break
    return 1


def rank(asked: argparse.Namespace, began_ns: int) -> int:
    """One life of one rank."""
    from tests.drill import fake_rank

    return fake_rank.live(asked, began_ns)


def main() -> int:
    began_ns = time.monotonic_ns()
    parser = argparse.ArgumentParser()
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--save-seconds", type=float, default=0.0)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--agent", default="")
    parser.add_argument("--rank", default="")
    parser.add_argument("--once-dead", default="")
    parser.add_argument("--resume")
    parser.add_argument("--wrong-pid", type=int, default=0)
    parser.add_argument("--is-rank", action="store_true")
    asked = parser.parse_args()
    return rank(asked, began_ns) if asked.is_rank else agent(asked)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    code = main()
    sys.stdout.flush()
    os._exit(code)
