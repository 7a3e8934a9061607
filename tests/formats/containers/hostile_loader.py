"""A process that loads hostile files as an unrestricted loader does, to see whether they are hostile at all.

python hostile_loader.py FOLDER NAME...
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint

from lastgood.testing.hostile import HOSTILE, Form


def main() -> None:
    warnings.simplefilter("ignore")
    for name in sys.argv[2:]:
        path = Path(sys.argv[1]) / name
        try:
            if HOSTILE[name].form is Form.TORCH:
                torch.load(path, weights_only=False)
            else:
                pickle.loads(path.read_bytes())
        except Exception as error:  # noqa: BLE001 - whether it raises is not the question, only whether it ran
            print(f"{name}: {error!r}"[:200])


if __name__ == "__main__":
    main()
