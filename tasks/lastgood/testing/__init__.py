"""For tests of lastgood, and of whatever is built on it.

- `build`: healthy families without torch.
- `damage`: the catalogue of faults, each with the one reason code that must be raised.
"""
