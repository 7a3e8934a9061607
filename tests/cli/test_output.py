"""What a person sees of long work: a display on a terminal, plain lines in a log."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from lastgood.cli.output import stage_display

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
