"""What the corpus holds, by name, and how each piece comes to be.

`Corpus(directory)["hf_trainer"]` writes that specimen, and all others of its program, on first use and keeps them; a
directory that outlives the process serves the next one too. Specimens are shared: whoever damages one works on a copy.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.corpus.host import Host
from tests.corpus.job import SAVED_STEPS, Job
from tests.corpus.observing import log_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One framework in one layout, without having been written."""

    name: str
    framework: str
    program: str
    variant: str = ""
    ranks: int = 1
    checkpoint: str
    """Pattern of a checkpoint's path below the root; `{step}` and `{number}` (0, 1, …) are filled in."""
    shared: tuple[str, ...] = ()
    """Files of the root that belong to no one checkpoint: pointers, scripts."""
    edited: tuple[str, ...] | None = None
    """Files whose entries the oracle edits; None: all. Another specimen of the same loader shows the others."""

    def checkpoint_path(self, number: int) -> str:
        """Path below the root of the checkpoint of that number, the oldest being 0."""
        return self.checkpoint.format(step=SAVED_STEPS[number], number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A kind that lies on disk."""

    kind: Kind
    root: Path
    """What the framework was told to save in."""
    steps: tuple[int, ...]
    """Completed steps of the checkpoints, the oldest first."""
    checkpoints: tuple[Path, ...]
    """A directory each, or a file each, the oldest first."""

    @property
    def newest(self) -> Path:
        """The checkpoint that a healthy resume takes."""
        return self.checkpoints[-1]

    def copy(self, target: Path) -> Specimen:
        """The same at `target`, free to be damaged."""
        shutil.copytree(self.root, target, symlinks=True)
        return specimen_at(self.kind, target)


_HF = {"framework": "hf_trainer", "program": "hf_trainer", "checkpoint": "checkpoint-{step}"}
_ACCELERATE = {
    "framework": "accelerate",
    "program": "accelerate_loop",
    "checkpoint": "checkpoints/checkpoint_{number}",
}
_DEEPSPEED = {
    "framework": "deepspeed",
    "program": "deepspeed_engine",
    "checkpoint": "global_step{step}",
    "ranks": 2,
}
_ZERO_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")

SPECIMENS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind(name="hf_trainer", **_HF),
            Kind(name="hf_trainer_2_ranks", **_HF, ranks=2, edited=("rng_state_1.pth",)),
            Kind(name="hf_trainer_sharded", **_HF, variant="sharded", edited=("model.safetensors.index.json",)),
            Kind(name="hf_trainer_peft", **_HF, variant="peft", edited=()),
            Kind(name="hf_trainer_deepspeed", **_HF, variant="deepspeed", ranks=2, edited=()),
            Kind(name="accelerate", **_ACCELERATE),
            Kind(name="accelerate_2_ranks", **_ACCELERATE, variant="stateful", ranks=2, edited=("dl_state_dict.bin",)),
            Kind(
                name="lightning",
                framework="lightning",
                program="lightning_fit",
                checkpoint="step={step}.ckpt",
                shared=("last.ckpt",),
                edited=("../last.ckpt",),
            ),
            Kind(
                name="lightning_fsdp",
                framework="lightning",
                program="lightning_fit",
                variant="fsdp",
                ranks=2,
                checkpoint="step={step}.ckpt",
                shared=("last.ckpt",),
                edited=("../last.ckpt/meta.pt",),
            ),
            Kind(name="deepspeed_0", **_DEEPSPEED, variant="0", shared=("latest",)),
            Kind(name="deepspeed_1", **_DEEPSPEED, variant="1", shared=("latest", *_ZERO_SCRIPTS)),
            Kind(name="deepspeed_2", **_DEEPSPEED, variant="2", shared=("latest", *_ZERO_SCRIPTS), edited=()),
            Kind(
                name="deepspeed_3",
                **_DEEPSPEED,
                variant="3",
                shared=("latest", *_ZERO_SCRIPTS),
                edited=tuple(f"zero_pp_rank_0_mp_rank_00_{kind}_states.pt" for kind in ("model", "optim")),
            ),
            Kind(name="torch_dcp", framework="torch_dcp", program="torch_dcp", ranks=2, checkpoint="step_{step}"),
            Kind(name="torch_save", framework="torch_save", program="plain_files", checkpoint="step-{step}.pt"),
            Kind(
                name="safetensors",
                framework="safetensors",
                program="plain_files",
                variant="safetensors",
                checkpoint="model-{step}.safetensors",
            ),
        )
    }
)
"""Every specimen that can be written here."""


def specimen_at(kind: Kind, root: Path) -> Specimen:
    """Describe what lies at `root`."""
    checkpoints = tuple(root / kind.checkpoint_path(number) for number in range(len(SAVED_STEPS)))
    return Specimen(kind=kind, root=root, steps=SAVED_STEPS, checkpoints=checkpoints)


class Corpus:
    """Specimens below one directory, each written when it is first asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __getitem__(self, name: str) -> Specimen:
        kind = SPECIMENS[name]
        root = self.directory / name
        if not root.exists():
            self._write_all_of(kind.program)
        return specimen_at(kind, root)

    def _write_all_of(self, program: str) -> None:
        """Write what is missing of one program, since starting it costs more than a specimen does.

        Each is written beside its place, then renamed: what was interrupted is begun again. Processes that share the
        directory wait for each other.
        """
        with (self.directory / f"{program}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kinds = [kind for kind in SPECIMENS.values() if kind.program == program]
            missing = [kind for kind in kinds if not (self.directory / kind.name).exists()]
            if not missing:
                return
            with Host(program) as host:
                for kind in missing:
                    draft = self.directory / f"{kind.name}.{os.getpid()}.draft"
                    write_specimen(kind, draft, host)
                    draft.rename(self.directory / kind.name)


def write_specimen(kind: Kind, root: Path, host: Host) -> Specimen:
    """Train and save at `root`, by a host of the kind's program.

    Raises:
        RuntimeError: A rank did not finish, or a checkpoint is not where it should be; the logs are in the message.
    """
    report = root.with_name(f"{root.name}.report")
    root.mkdir(parents=True)
    observed = host.run(job_of(kind, root, report, save=True, until=SAVED_STEPS[-1]))
    specimen = specimen_at(kind, root)
    absent = [str(path) for path in specimen.checkpoints if not path.exists()]
    if absent or not all(rank is not None and rank.finished for rank in observed):
        logs = "\n".join(log_path(report, rank).read_text(errors="replace")[-2000:] for rank in range(kind.ranks))
        reasons = [f"{rank.raised}: {rank.message}" if rank else "ended by the host" for rank in observed]
        raise RuntimeError(f"{kind.name} was not written: absent {absent}: ranks ended with {reasons}\n{logs}")
    shutil.rmtree(report)
    return specimen


def job_of(kind: Kind, root: Path, report: Path, **changes: object) -> Job:
    """A job of this kind's program; `changes` are further fields of `Job`."""
    fields = {"program": kind.program, "variant": kind.variant, "ranks": kind.ranks, "launched": kind.ranks > 1}
    return Job(root=root, report=report, **(fields | changes))  # type: ignore[arg-type]
