"""lastgood: proof that the checkpoints of PyTorch training resume.

The tour, from what everything knows to what knows everything:

- `identity`, `errors`, `verdict`, `documents`: names, exceptions, verdicts, strict JSON.
- `digest`, `manifest`: what a checkpoint claims to be, byte for byte.
- `stores`: one small port over file systems (and later buckets).
- `protocol`, `family`: claims, commits, fences, refusals; what `latest` may offer (docs/format.md, ADR 0002).
- `publish`, `verify`, `records`: a complete checkpoint out; evidence about it back.
- `state`: the required-state registry (torch lives there).
- `replica`, `restore`, `drill`: a training job as a command and a trace; tiers 2 and 3.
- `testing`: the damage catalogue. `cli`: the command line.

Importing this package costs no torch, numpy, boto3, pandas or SQLAlchemy.
"""

from __future__ import annotations

__version__ = "0.1.0"
