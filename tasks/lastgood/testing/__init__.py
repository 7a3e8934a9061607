"""For tests of lastgood, and of whatever is built on it.

- `build`: healthy families without torch.
- `evidence`: families with a past, records of every tier included, written in a second.
- `damage`, `restore_damage`: the catalogues of faults, each with the one reason code that must be raised.
- `hostile`: files that try to run code, to exhaust whoever reads them, or to mean two things.
- `server`, `seaweedfs`: a real server of buckets, for as long as a block lasts.
"""
