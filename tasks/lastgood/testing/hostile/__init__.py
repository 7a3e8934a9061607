"""Hostile files: each tries to run code, to exhaust a reader, or to mean two things, and must do none of it.

Whoever reads checkpoints of strangers can hold a reader of their own against them:

    for hostile in HOSTILE.values():
        hostile.write(folder, marker)   # a real loader that executes it would create `marker`
        ...

Rules: no file does harm where it succeeds: code creates the marker, and nothing else; bombs are small on disk. Files
are made byte by byte, without torch and without a pickler.

- `catalogue`: what an entry is. `assembly`: pickles and zips that may lie.
- `code`: a pickle that runs code, in every place where one can hide.
- `bombs`: pickles that exhaust memory, time or the stack, or describe what cannot be.
- `archives`: zips that bomb, lie, or read differently in two readers.
- `layouts`: `.metadata`, safetensors, indexes, and names that are no files.

Source: attacks published against torch, `picklescan` and zip readers, by kind; ADR 0010.
"""

from __future__ import annotations

from lastgood.testing.hostile import archives, bombs, code, layouts
from lastgood.testing.hostile.catalogue import HOSTILE, Answer, Form, Hostile

__all__ = ["HOSTILE", "Answer", "Form", "Hostile", "archives", "bombs", "code", "layouts"]
