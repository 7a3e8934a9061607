"""A launcher for tests: `python fork_ranks.py WORLD_SIZE ARGUMENTS…` runs ranks of the reference trainer.

Torch is imported once and the ranks are forked from that, so that a restore costs one import instead of one a rank.
They are processes of their own all the same. The way through torchrun is tested beside it, more slowly.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from lastgood.replica.trainer.life import main


def run_rank(rank: int, world_size: int, port: int, arguments: list[str]) -> None:
    """The whole life of one rank, in the forked process."""
    began_ns = time.monotonic_ns()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    code = main(arguments, os.environ, began_ns=began_ns)
    sys.stderr.flush()
    os._exit(code)


def launch(world_size: int, arguments: list[str]) -> int:
    """Fork the ranks, wait for all of them; the worst exit code."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            run_rank(rank, world_size, port, arguments)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
