"""The command line: everything that a flow does, without a server, by the same code.

Decides how an answer reaches a person, a script and a shell: one JSON document with `--json`, text otherwise; stdout
for the answer, stderr for everything else; exit codes 0 pass, 1 fail, 2 inconclusive or not run, 64 usage or
configuration, 70 our own error. `latest` and `exec`: 1 nothing may be resumed, 2 could not tell. Commands are imported
when they are called, because a launch script pays for the start of each.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import entry_points
from typing import Any

import click

from lastgood import __version__
from lastgood.cli.output import complain, discard_stdout
from lastgood.errors import LastgoodError, StoreError
from lastgood.redaction import clean_logs, spell_out

__all__ = ["main"]

EXIT_USAGE = 64
EXIT_INTERNAL = 70

_COMMANDS = {
    "copy": ("lastgood.cli.copy", "Copy generations to another store, verified there, each COMMIT last."),
    "doctor": ("lastgood.cli.doctor", "Probe a store and this machine before they are trusted."),
    "drill": ("lastgood.cli.drill", "Tier 3: kill a disposable replica and recover it through its launcher."),
    "exec": ("lastgood.cli.resume", "Start a command with what may be resumed, or start nothing."),
    "inspect": ("lastgood.cli.inspect", "Show what a family or a generation is, on one screen."),
    "latest": ("lastgood.cli.resume", "Print the newest generation that may be resumed."),
    "ledger": ("lastgood.cli.ledger", "Bring the SQL index of all evidence up to date, or make it again."),
    "quarantine": ("lastgood.cli.operate", "Quarantine a family by an operator's word."),
    "reconcile": (
        "lastgood.cli.reconcile",
        "Judge what nobody judged, mend pointers, sweep leftovers, name stale evidence.",
    ),
    "release": ("lastgood.cli.operate", "Lift a family's quarantine; failed generations stay barred."),
    "report": ("lastgood.cli.report", "Judge every objective and write the readiness page."),
    "restore": ("lastgood.cli.restore", "Tier 2: restore in fresh processes and run a smoke step."),
    "rollback": ("lastgood.cli.operate", "Go back to a generation on purpose, with an audited record."),
    "seal": ("lastgood.cli.seal", "Adopt a checkpoint that another framework wrote, where it lies."),
    "status": ("lastgood.cli.status", "Say what is broken, and what may be resumed."),
    "verify": ("lastgood.cli.verify", "Tier 1: compare a checkpoint with its manifest, byte for byte."),
}


class _LazyGroup(click.Group):
    """Lists commands without importing them; other packages add theirs as entry points of `lastgood.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_COMMANDS, *(point.name for point in entry_points(group="lastgood.commands"))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module = importlib.import_module(_COMMANDS[cmd_name][0])
            command: click.Command = getattr(module, f"{cmd_name}_command")
            return command
        for point in entry_points(group="lastgood.commands", name=cmd_name):
            loaded: click.Command = point.load()
            return loaded
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = [
            (name, command.get_short_help_str())
            for name in self.list_commands(ctx)
            if name not in _COMMANDS and (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(sorted([*((name, text) for name, (_, text) in _COMMANDS.items()), *others]))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="lastgood")
def lastgood_group() -> None:
    """A write that returned proves that a writer returned. lastgood proves that the checkpoint resumes.

    A URI is <root>/<family> or <root>/<family>/<generation>; a root is a path, file:///... or s3://bucket/prefix.

    Exit codes: 0 pass, 1 fail, 2 inconclusive or not run, 64 usage or configuration, 70 our own error.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit the process with its code."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing but SystemExit of an `exec`ed command leaves it."""
    clean_logs()
    try:
        outcome: Any = lastgood_group.main(args=arguments, prog_name="lastgood", standalone_mode=False)
    except LastgoodError as error:
        complain(error.message, error.hint)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        context = f" ({error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        complain(error.format_message() + context, None)
        return EXIT_USAGE
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted", None)
        return 130
    except SystemExit:
        # Click's way of saying that whoever read the help text went away.
        discard_stdout()
        return 0
    except OSError as error:
        # The store's failures are classified; what is left is this machine's (a full scratch disk, no descriptors).
        discard_stdout()
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        complain(reason + (f": {error.filename}" if error.filename else ""), None)
        return StoreError.exit_code
    except Exception as error:  # noqa: BLE001 - the last line of defence: our own defect, said in one line
        if os.environ.get("LASTGOOD_TRACEBACK"):
            click.echo(spell_out(error), err=True, nl=False)
        complain(
            f"internal error: {type(error).__name__}: {error}", "set LASTGOOD_TRACEBACK=1 and report what it prints"
        )
        return EXIT_INTERNAL
    return outcome if isinstance(outcome, int) else 0
