"""Benchmarks: what lastgood promises about speed, measured against a named peer in the same run.

`python -m benchmarks [name…]` (or `make bench`) prints one Markdown table and exits 0 when every target is met, 1 when
one is missed, 2 when a peer cannot be had. A benchmark is a module `bench_<subject>.py` in this folder with a tuple
`BENCHMARKS` of `harness.Benchmark`; nothing else needs to know of it. Absolute times belong to a machine; only ratios
of paired runs are judged.
"""
