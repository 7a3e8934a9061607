"""Checkpoints that nobody here wrote: what they are, whether training can resume from them, and what is wrong.

- `source`, `root`: the files of one checkpoint, and the directory that its siblings lie in, behind the store port.
- `containers`: the file formats under almost all of them, read without torch and without running a byte.
- `description`, `readers`: what a reader states of a checkpoint; one framework a module, in the order they are asked.
- `integrity`: whether the bytes are those that were written, as far as the files can tell.
- `classify`: from what is stated and found to whether it can be resumed; `examination`: all of it in one look.
- `trees`, `structural`, `verdicts`: many of them; which one to resume; a verdict without a manifest.
- `sealing`: a manifest and a COMMIT for one, where it lies.
- `oracle`, `loaders`: measured reactions of real loaders, and what they say of a finding.
- `believing`: when bytes that make no sense are the file's fault.

Rules: a checkpoint is a stranger's (docs/architecture.md): no object of it is ever built, no link followed, no length
believed before it was compared; what cannot be known is said; a healthy checkpoint gives no finding.
"""
