"""A replica is a command and a trace: the training job as the isolated restore and the kill drill see it.

`contract` is what a replica is told (environment and placeholders), `trace` is what it reports; neither loads torch.
`trainer` is the reference replica, a small byte-level transformer, and the only part of this room that loads torch.
"""
