"""A plain PyTorch loop that publishes with `torch.save`, resumes, and reports: any writer mode, without a registry.

    python examples/train_minimal.py runs/minimal --steps 100

Run it, kill it, run it again: it goes on where the newest committed checkpoint stands. What lastgood adds to the loop
is marked with `# lastgood`. Its checkpoints pass tier 1 and can be drilled; for a pass of tier 2 somebody must say what
has to come back, and this loop does not. `train_registered.py` does, and gets a strict load and an audit besides.
"""

from __future__ import annotations

import argparse
import os

import torch

from lastgood.job import content_id, describe_job
from lastgood.manifest import Component, Identity, JobDescription
from lastgood.publish import StagedArtifact
from lastgood.replica.contract import ReplicaEnvironment
from lastgood.replica.events import Phase, StopReason
from lastgood.replica.tracing import RunTrace
from lastgood.run import Run, SoloGroup

SAVE_EVERY = 10
NOT_USED = {
    Component.SCALER: "float32 throughout",
    Component.SCHEDULER: "the learning rate is constant",
    Component.ACCUMULATION: "every microbatch is a step",
    Component.CONFIG: "the script is its own configuration",
    Component.TOPOLOGY: "one process",
}


def main() -> None:
    """Train a line through noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="?", help="<root>/<family>; the root must exist")
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args()
    told = ReplicaEnvironment.from_environ(os.environ)  # lastgood: what a restore or a drill asks for
    stop_step = asked.steps if told.stop_step is None else told.stop_step

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0

    run = Run.start(told.family or asked.family, SoloGroup(), resume=told.resume, allow_fresh=True)  # lastgood
    with RunTrace.of(run) as trace:  # lastgood
        if run.resumed is not None:
            with trace.timeline.phase(Phase.LOAD):
                state = torch.load(run.resumed.directory / "state.pt", weights_only=True)
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
                torch.set_rng_state(state["rng"])
                step = state["step"]
            trace.loaded(run.resumed, keys={"model": len(state["model"])})  # lastgood
        while step < stop_step:
            inputs = torch.randn(16, 8)
            loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            step += 1
            trace.step(step, loss.item(), grad_norm=norm.item())  # lastgood
            if step % SAVE_EVERY == 0 or step == stop_step:
                staging = run.stage(step)  # lastgood: what is written there is published whole or not at all
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save({**state, "rng": torch.get_rng_state()}, staging.payload / "state.pt")
                artifact = StagedArtifact(path="state.pt", component=Component.MODEL, rank=0)
                published = run.publish(staging, [artifact], job=describe(step))  # lastgood: raises unless committed
                trace.saved(published.generation)
        trace.stopped(StopReason.FINISHED, step)
    run.close()  # lastgood


def describe(step: int) -> JobDescription:
    """What the manifest says of this job; nothing in it may be left open."""
    with open(__file__, "rb") as source:
        code = content_id(source.read())
    return describe_job(
        step,
        run="minimal",
        code=code,
        configuration=code,
        model=Identity(name="line", revision="8 inputs"),
        dataset=Identity(name="noise", revision="drawn from the torch stream"),
        saved=(Component.MODEL, Component.OPTIMIZER, Component.RNG, Component.DATA),
        absent=NOT_USED,
    )


if __name__ == "__main__":
    main()
