"""The reference trainer: a small byte-level transformer that publishes, resumes and reports as the contract asks.

    torchrun --nproc-per-node=2 -m lastgood.replica.trainer --family runs/demo --allow-fresh --steps 200 --save-every 20

It is a training job like any other: it knows no server, no tier and no verdict. `settings` is its command line, `model`
and `corpus` what it trains on, `parallel` how ranks share it, `job` what its manifests promise, `loop` the training
itself, `faults` the wrong saves that prove the checkers able to fail. Importing this package loads no torch; its
modules do.
"""
