"""The steps of `lastgood` as Prefect tasks: a thin coat, with no knowledge of checkpoints of its own.

Empty so far. Everything that a flow will do can be done today from the command line, by the same library code
(`lastgood verify`, `lastgood restore`, `lastgood drill`); this package will add only what belongs to an orchestrator:

- task wrappers with names, retries, timeouts and tags, one Prefect task for one tier of one generation;
- artifacts that show a verdict on the flow run's page, built from the very record that storage holds;
- the relay, which turns storage events into flow runs under idempotency keys;
- the stack that a demonstration needs (server, process pool, worker), and its commands, which join the `lastgood`
  command line through the entry-point group `lastgood.commands`.

Rules:

- Dependencies point one way: `deployments → flows → lastgood_prefect → lastgood`. `lastgood` never imports this
  package, nor Prefect; import-linter holds both (`pyproject.toml`).
- A wrapper decides nothing. It calls one function of `lastgood` and returns its verdict; whatever can be got wrong
  about a checkpoint is tested there, without a server.
"""
