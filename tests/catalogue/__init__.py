"""The damage catalogue, counted: every entry applied to every checkpoint it fits, and every healthy one looked at.

- `cases`: what there is to look at, and what must be said of each; nothing is looked at here.
- `judging`: one case becomes one answer. `reports`: the faults that people reported in public, by family.
- `page`: the answers as a page. `python -m tests.catalogue` (`make catalogue`) does all of it, and fails with a miss.
"""
