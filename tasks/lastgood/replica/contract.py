"""The replica contract: what a training job is told when it runs as a replica, and in which environment.

Decides the variables, the placeholders of a declared command, and which of the supervisor's variables a replica sees.
Leaves starting processes to `restore` and `drill`.

Rules enforced here: a replica inherits only what is listed below, never a credential of the supervisor; experiment
trackers are off, for a disposable run must not appear beside the real ones; a misspelt value or placeholder is a
`UsageError` that names it, never a default.

    LASTGOOD_REPLICA=1         this process is a replica; requires LASTGOOD_FAMILY
    LASTGOOD_FAMILY=<uri>      where to publish and discover
    LASTGOOD_RESUME=<uri>      a hint: which generation the supervisor expects to be resumed; empty for none
    LASTGOOD_STOP_STEP=<n>     stop once this many steps are completed
    LASTGOOD_TRACE=1           write the trace (0: do not)

Source: docs/architecture.md
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from lastgood.errors import UsageError
from lastgood.identity import MAXIMUM_STEP

__all__ = ["INHERITED_VARIABLES", "TRACKERS_OFF", "ReplicaEnvironment", "render_command", "replica_environ"]

REPLICA: Final = "LASTGOOD_REPLICA"
FAMILY: Final = "LASTGOOD_FAMILY"
RESUME: Final = "LASTGOOD_RESUME"
STOP_STEP: Final = "LASTGOOD_STOP_STEP"
TRACE: Final = "LASTGOOD_TRACE"

PLACEHOLDERS: Final = ("family", "resume", "stop_step", "world_size")

INHERITED_VARIABLES: Final = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
)
"""What a replica takes over from its supervisor: how to find programs and devices, and nothing secret."""

TRACKERS_OFF: Final[Mapping[str, str]] = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
"""Each tracker's own switch. MLflow has none for its client, so its store is put into the replica's home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEnvironment:
    """What the environment tells a training job.

    Round-trip law: `ReplicaEnvironment.from_environ(e.to_environ()) == e`.

    Args:
        is_replica: Whether this job is disposable; production jobs leave it False.
        family: URI or path of `<root>/<family>`; None where the command line says it.
        resume: URI of the generation to resume; None for no hint.
        stop_step: Completed steps after which to stop; None for the job's own end.
        trace: Whether to write the trace.
    """

    is_replica: bool = False
    family: str | None = None
    resume: str | None = None
    stop_step: int | None = None
    trace: bool = True

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables strictly; an empty one counts as unset.

        Raises:
            UsageError: A value is not a lawful one, or a replica is not told where to publish.
        """
        told = cls(
            is_replica=_switch(environ, REPLICA, default=False),
            family=environ.get(FAMILY) or None,
            resume=environ.get(RESUME) or None,
            stop_step=_step(environ, STOP_STEP),
            trace=_switch(environ, TRACE, default=True),
        )
        if told.is_replica and told.family is None:
            raise UsageError(
                f"replica without a family: {REPLICA}=1 but {FAMILY} is not set",
                hint="a replica never guesses where to publish: its supervisor names a family of its own",
            )
        return told

    def to_environ(self) -> dict[str, str]:
        """The variables that say the same; every one is present, so that none is inherited by accident."""
        return {
            REPLICA: "1" if self.is_replica else "",
            FAMILY: self.family or "",
            RESUME: self.resume or "",
            STOP_STEP: "" if self.stop_step is None else str(self.stop_step),
            TRACE: "1" if self.trace else "0",
        }


def replica_environ(
    told: ReplicaEnvironment, *, base: Mapping[str, str], home: Path, declared: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a replica's processes.

    Args:
        told: The contract's own variables.
        base: The supervisor's environment, from which only `INHERITED_VARIABLES` are taken.
        home: A directory of the replica's own, for HOME, TMPDIR and whatever a tracker insists on writing.
        declared: What the family's configuration adds; it may override all but the contract itself.

    Raises:
        UsageError: `declared` sets a variable of the contract.
    """
    reserved = sorted(set(declared) & set(told.to_environ()))
    if reserved:
        raise UsageError(f"environment declares a variable of the replica contract: {', '.join(reserved)}")
    return {
        **{name: base[name] for name in INHERITED_VARIABLES if name in base},
        "HOME": str(home),
        "TMPDIR": str(home),
        "MLFLOW_TRACKING_URI": (home / "mlruns").as_uri(),
        **TRACKERS_OFF,
        # A restarted rank may otherwise read the dead one's address out of the store that both share.
        # Source: pytorch/pytorch#135712.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # torchrun would set it with a warning; another count of threads changes sums, hence the promise.
        "OMP_NUM_THREADS": "1",
        **declared,
        **told.to_environ(),
    }


def render_command(command: Sequence[str], told: ReplicaEnvironment, *, world_size: int) -> tuple[str, ...]:
    """Fill `{family}`, `{resume}`, `{stop_step}` and `{world_size}` into a declared command; `{{` is a brace.

    An unset value becomes empty text, and an argument never becomes two or none: no shell reads it.

    Raises:
        UsageError: The command is empty, a placeholder is unknown, or braces do not match; the argument is named.
    """
    if not command:
        raise UsageError("replica command is empty")
    values = {
        "family": told.family or "",
        "resume": told.resume or "",
        "stop_step": "" if told.stop_step is None else str(told.stop_step),
        "world_size": str(world_size),
    }
    return tuple(_render(argument, values) for argument in command)


def _render(argument: str, values: Mapping[str, str]) -> str:
    try:
        pieces = list(string.Formatter().parse(argument))
    except ValueError as error:
        raise UsageError(f"braces do not match in replica command: {argument!r}: {error}") from None
    text = ""
    for literal, name, format_spec, conversion in pieces:
        text += literal
        if name is None:
            continue
        if name not in values or format_spec or conversion:
            known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise UsageError(
                f"unknown placeholder in replica command: {argument!r}: expected one of {known}",
                hint="write {{ and }} for braces that are meant",
            )
        text += values[name]
    return text


def _switch(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(name, "")
    if text not in ("", "0", "1"):
        raise UsageError(f"{name} is not a switch: expected 0 or 1, found {text!r}")
    return text == "1" if text else default


def _step(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) > MAXIMUM_STEP:
        raise UsageError(f"{name} is not a step: expected 0..{MAXIMUM_STEP}, found {text[:40]!r}")
    return int(text)
