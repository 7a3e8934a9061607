"""A program that starts a stack, tells its pids and waits to be killed: `alone.py HOME [POOL…]`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from lastgood_prefect.stack import Stack


def main() -> None:
    with Stack.start(Path(sys.argv[1]), pools=sys.argv[2:]) as stack:
        print(stack.server.pid, *(worker.pid for worker in stack.workers.values()), flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    main()
