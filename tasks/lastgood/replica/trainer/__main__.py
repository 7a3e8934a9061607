"""`python -m lastgood.replica.trainer`: the first line of the process, and its last.

Everything between is `life`. The process leaves without unwinding the interpreter: taking torch down costs a second,
and a publish that waits in the background for a rank that is gone must not keep this one alive.
"""

from __future__ import annotations

import os
import sys
import time

began_ns = time.monotonic_ns()  # before anything is imported that costs time

if __name__ == "__main__":
    from lastgood.replica.trainer.life import main

    code = main(sys.argv[1:], os.environ, began_ns=began_ns)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
