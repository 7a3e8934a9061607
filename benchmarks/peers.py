"""The programs that lastgood is measured against, found on this machine or fetched into a folder of the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import PeerMissing


def program(name: str) -> Path:
    """A program that every Debian has."""
    found = shutil.which(name)
    if found is None:
        raise PeerMissing(f"not installed: {name}")
    return Path(found)


def b3sum(folder: Path) -> Path:
    """The reference command of BLAKE3: from the path, or unpacked from Debian's package without installing it."""
    if found := shutil.which("b3sum"):
        return Path(found)
    unpacked = folder / "usr" / "bin" / "b3sum"
    if not unpacked.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            apt_get = str(program("apt-get"))
            for arguments in (("update",), ("download", "b3sum")):
                subprocess.run([apt_get, *arguments], cwd=folder, check=True, capture_output=True, timeout=300)
            [package] = folder.glob("b3sum_*.deb")
            dpkg_deb = str(program("dpkg-deb"))
            subprocess.run([dpkg_deb, "--extract", package, folder], check=True, capture_output=True, timeout=60)
            package.unlink()
        except (subprocess.SubprocessError, ValueError) as error:
            raise PeerMissing(f"b3sum is neither on the path nor to be had from Debian's packages: {error}") from error
    return unpacked


def version(command: Path) -> str:
    """The first line that a program says of its version."""
    flag = "version" if command.name == "openssl" else "--version"
    done = subprocess.run([command, flag], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.splitlines()[0].strip()


def prefect(folder: Path) -> Path:
    """A Python that can import Prefect, in an environment of its own: it must not come into the project's."""
    environment = folder / "prefect"
    python = environment / "bin" / "python"
    if not (environment / "installed").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True, timeout=120)
            pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "prefect>=3.6,<4"], check=True, capture_output=True, timeout=900)
        except subprocess.SubprocessError as error:
            raise PeerMissing(f"prefect cannot be installed into {environment}: {error}") from error
        (environment / "installed").touch()  # touched last, so that an interrupted installation is begun again
    return python
