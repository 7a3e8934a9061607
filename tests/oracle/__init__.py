"""The silent-acceptance oracle: real loaders on damaged copies of checkpoints that they have just written.

- `faults`: every single damage of a specimen. `edits`: changes inside a file, which need the framework's own pickle.
- `judging`: two observations, of the damaged and of the undamaged resume, become a reaction and its consequences.
- `measuring`: runs cells. `page`: the table as a page. `python -m tests.oracle` (`make oracle`) does all of it.

Source: ADR 0012.
"""
