"""Be the host of the program that is named: `python -m tests.corpus hf_trainer`."""

from __future__ import annotations

import sys

from tests.corpus.host import serve

if __name__ == "__main__":
    serve(sys.argv[1])
