"""`python -m lastgood` is the command `lastgood`."""

from __future__ import annotations

from lastgood.cli import main

if __name__ == "__main__":
    main()
