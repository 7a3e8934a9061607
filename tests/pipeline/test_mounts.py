"""Choosing between notification and polling by the type of a file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood_prefect.mounts import LOCAL_FILE_SYSTEMS, file_system_of, hears_every_write

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /checkpoints rw,relatime - nfs4 server:/export rw,vers=4.2
31 30 0:41 / /checkpoints/local rw - xfs /dev/nvme0n1 rw
32 22 0:42 / /with\040space rw master:2 propagate_from:1 - lustre mds@tcp:/fs rw
33 22 0:43 / /twice rw - xfs /dev/sda rw
34 33 0:44 / /twice rw - fuse.gcsfuse bucket rw
a line that nobody can read
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/runs", "ext4"),
        ("/checkpoints", "nfs4"),
        ("/checkpoints/llm-7b/.lastgood", "nfs4"),
        ("/checkpoints-2", "ext4"),
        ("/checkpoints/local/x", "xfs"),
        ("/with space/runs", "lustre"),
        ("/twice/x", "fuse.gcsfuse"),
    ],
)
def test_the_deepest_and_topmost_mount_decides(path: str, expected: str) -> None:
    """Taking a shared file system for the local one around it would wait for events that never come."""
    assert file_system_of(Path(path), mounts=MOUNTS) == expected


def test_a_path_that_is_not_there_yet_has_the_type_of_what_is(tmp_path: Path) -> None:
    """A family is configured before its first save, and must be watched in the right way from the beginning."""
    assert file_system_of(tmp_path / "not" / "yet") == file_system_of(tmp_path) != "unknown"


def test_nothing_is_taken_for_local_that_is_not_known_to_be() -> None:
    """Polling costs little; waiting for a notification of another host's write costs the verdict."""
    shared = {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "ceph", "beegfs", "9p", "virtiofs", "fuse.sshfs", "?"}
    assert not any(hears_every_write(name) for name in shared)
    assert all(hears_every_write(name) for name in LOCAL_FILE_SYSTEMS)
    assert file_system_of(Path("/srv"), mounts="") == "unknown"
