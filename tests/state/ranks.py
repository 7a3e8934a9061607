"""Real processes that form a gloo group: one interpreter imports torch once and forks the ranks of every phase.

    run(directory, ("save_fsdp2", 2), ("load_fsdp2", 4))

runs `tests.state.scenarios.save_fsdp2` on 2 ranks, then `load_fsdp2` on 4. Importing torch in every rank would cost
more than everything that is tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
PHASE_SECONDS = 240


def run(directory: Path, *phases: tuple[str, int]) -> None:
    """Run the phases in order; a rank that fails fails the test with its traceback."""
    arguments = [f"{name}:{world_size}" for name, world_size in phases]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.state.ranks", str(directory), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PHASE_SECONDS * len(phases),
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def main(directory: Path, phases: list[str]) -> int:
    import torch  # once, before the forks

    import tests.state.scenarios as scenarios

    torch.set_num_threads(1)
    for phase in phases:
        name, _, world_size = phase.partition(":")
        children = [
            _fork(directory, getattr(scenarios, name), phase, rank, int(world_size)) for rank in range(int(world_size))
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            print(f"phase {phase}: exit codes {codes}", file=sys.stderr)
            return 1
    return 0


def _fork(directory: Path, scenario: object, phase: str, rank: int, world_size: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        import torch

        from lastgood.state import RankIdentity

        store = f"file://{directory}/store-{phase.replace(':', '-')}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
        assert callable(scenario)
        scenario(RankIdentity.current({"data_parallel": rank}), directory)
        torch.distributed.destroy_process_group()
        code = 0
    except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's loop
        print(f"rank {rank} of {phase}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
