"""Where the project's files are: flows, deployments and what runs underneath them.

Decides nothing but that: in a checkout (an editable install) they lie in the repository, where people edit them; an
installed wheel carries copies inside this package (`pyproject.toml`, force-include). Prefect addresses flows by a path
that starts here, and a run makes it its working directory before it loads one. So no deployment holds a path of any
machine: the installation that runs a flow is the one that says where it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from lastgood.errors import UsageError

__all__ = ["DEPLOYMENTS", "enter_project", "project_directory"]

DEPLOYMENTS: Final = "deployments/prefect.yaml"
"""The file that Prefect deploys from, relative to the project directory."""


def project_directory() -> Path:
    """The directory that holds `flows/`, `deployments/` and `infra/`.

    Raises:
        UsageError: The installation lacks them.
    """
    package = Path(__file__).resolve().parent
    for directory in (package / "project", package.parents[1]):
        if (directory / DEPLOYMENTS).is_file():
            return directory
    raise UsageError(
        f"project files not found: neither {package / 'project'} nor {package.parents[1]} holds {DEPLOYMENTS}",
        hint="install lastgood from its wheel, or as an editable checkout",
    )


def enter_project() -> dict[str, str]:
    """The pull step of every deployment: make the project the working directory, where the run's machine has it.

    Returns:
        What Prefect expects of such a step: the directory that it is to load flows from.
    """
    directory = project_directory()
    os.chdir(directory)
    return {"directory": str(directory)}
