"""What a person sees of long work: a display on a terminal, plain lines in a log."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lastgood.cli.output import stage_display
from lastgood.testing.build import Recipe, build_family

PROGRAM = """
from lastgood.cli.output import stage_display
with stage_display("drill") as show:
    show("training until the kill")
    show("killed; \\x1b[31mwaiting")
"""


def test_a_log_gets_one_plain_line_a_stage(capfd: pytest.CaptureFixture[str]) -> None:
    """Cron mails it and CI keeps it: no control character, and nothing overwritten."""
    with stage_display("drill") as show:
        show("training")
        show("killed")
    assert capfd.readouterr().err == "lastgood: drill: training\nlastgood: drill: killed\n"


BAR = """
import sys
from lastgood.cli.output import progress_bar
from lastgood.location import locate
with progress_bar("verify", locate(sys.argv[1])) as progress:
    told = "no bar" if progress is None else progress(2**27)
print(told)
"""


@pytest.mark.parametrize(("megabytes", "told"), [(300, "None\n"), (3, "no bar\n")])
def test_a_bar_is_as_long_as_the_manifest_says(tmp_path: Path, megabytes: int, told: str) -> None:
    """Nothing is listed a second time for it; what takes a moment needs none, and nobody looking at a log wants one."""
    recipe = Recipe(world_size=1, extra_artifacts=1, extra_bytes=1000)
    built = build_family(tmp_path, "llm-7b", steps=(12,), recipe=recipe)
    manifest = tmp_path / built.keys.manifest(built.newest)
    manifest.write_bytes(manifest.read_bytes().replace(b'"bytes":1000,', b'"bytes":%d,' % (megabytes * 2**20)))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    uri = f"{tmp_path}/llm-7b/{built.newest}"
    try:
        for stderr, expected in ((theirs, told), (subprocess.DEVNULL, "no bar\n")):
            done = subprocess.run(
                [sys.executable, "-c", BAR, uri],
                stdout=-1,
                stderr=stderr,
                text=True,
                check=True,
                timeout=60,
                env=environment,
            )
            assert done.stdout == expected
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_terminal_shows_each_stage_with_its_time() -> None:
    """Whoever waits for minutes must see that something goes on, and what it is; names stay harmless there too."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", PROGRAM], stderr=theirs, check=True, timeout=60, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:
            break  # the last writer is gone
    os.close(ours)
    text = seen.decode()
    assert "\x1b[31m" not in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(r"✓ training until the kill\s+0:00:0\d", plain)
    assert re.search(r"✓ killed; \\x1b\[31mwaiting\s+0:00:0\d", plain), plain
