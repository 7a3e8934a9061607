"""The automations that lastgood ships: alarms, and the end of runs that nobody runs any more.

Decides how the files under `deployments/automations/` become automations of a server; leaves what they say to them:
`name`, `description` and `trigger` as Prefect has them, `runs` (a deployment to run), `actions` (Prefect's own) and
`notification` (`subject` and `body`, Jinja over the event). Rules:

- An automation is known by its name, so that a second deployment finds it and changes only what its file changed.
- Whether it is enabled, and whom it notifies, is said on the server: both stay as people set them there.
- Without a notification block an alarm still leaves something to see: the run of the deployment that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import yaml  # type: ignore[import-untyped]  # Prefect brings the package, nobody its stubs
from prefect.automations import AutomationCore
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import ActionTypes, SendNotification
from prefect.exceptions import ObjectNotFound
from pydantic import TypeAdapter

from lastgood.errors import UsageError
from lastgood_prefect.project import project_directory

__all__ = ["Shipped", "ensure_automation", "find_block", "shipped_automations"]

DIRECTORY: Final = "deployments/automations"

_ACTIONS: Final[TypeAdapter[list[ActionTypes]]] = TypeAdapter(list[ActionTypes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """One file.

    Args:
        name: The automation's identity.
        description: What it means and what to do.
        trigger: As Prefect writes it.
        runs: `<flow>/<deployment>` that it runs; None: none.
        actions: What else it does on any server.
        notification: Subject and body; None: nobody need be told.
    """

    name: str
    description: str
    trigger: dict[str, Any]
    runs: str | None = None
    actions: tuple[ActionTypes, ...] = ()
    notification: tuple[str, str] | None = None

    def wanted(self, deployment: UUID | None, notifications: tuple[SendNotification, ...]) -> AutomationCore:
        """The automation as the server shall hold it.

        Args:
            deployment: The id of what it runs.
            notifications: Whom it tells.
        """
        run = {"type": "run-deployment", "source": "selected", "deployment_id": deployment}
        return AutomationCore.model_validate(
            {
                "name": self.name,
                "description": self.description,
                "trigger": self.trigger,
                "actions": [*([run] if deployment else []), *self.actions, *notifications],
            }
        )


def shipped_automations() -> tuple[Shipped, ...]:
    """What the project ships, in the order of its files' names."""
    return tuple(_read(path) for path in sorted((project_directory() / DIRECTORY).glob("*.yaml")))


def find_block(client: SyncPrefectClient, name: str) -> UUID:
    """The id of a notification block.

    Args:
        client: Of the server that holds it.
        name: `<block type>/<block name>`, e.g. `slack-webhook/on-call`.

    Raises:
        UsageError: There is none of that name.
    """
    kind, separator, block = name.partition("/")
    try:
        if not separator:
            raise ObjectNotFound(ValueError(name))
        return client.read_block_document_by_name(block, kind, include_secrets=False).id
    except ObjectNotFound:
        raise UsageError(
            f"notification block not found: {name}",
            hint="name it as <type>/<name>, e.g. slack-webhook/on-call; `prefect block ls` lists them",
        ) from None


def ensure_automation(client: SyncPrefectClient, shipped: Shipped, block: UUID | None) -> str:
    """Create an automation, or bring it up to date.

    Args:
        client: Of the server.
        shipped: Its file.
        block: Notification block; None: those that it already tells.

    Returns:
        `created`, `updated` or `unchanged`.
    """
    deployment = None if shipped.runs is None else client.read_deployment_by_name(shipped.runs).id
    found = client.read_automations_by_name(shipped.name)
    existing = found[0] if found else None
    told: tuple[SendNotification, ...] = ()
    if shipped.notification is not None:
        subject, body = shipped.notification
        blocks = [block] if block else _blocks(existing)
        told = tuple(SendNotification(block_document_id=one, subject=subject, body=body) for one in blocks)
    wanted = shipped.wanted(deployment, told)
    if existing is None:
        client.create_automation(wanted)
        return "created"
    wanted.enabled = existing.enabled
    if AutomationCore.model_validate(existing.model_dump(exclude={"id"})) == wanted:
        return "unchanged"
    client.update_automation(existing.id, wanted)
    return "updated"


def _blocks(existing: AutomationCore | None) -> list[UUID]:
    actions = existing.actions if existing is not None else []
    return [action.block_document_id for action in actions if isinstance(action, SendNotification)]


def _read(path: Path) -> Shipped:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    told = document.pop("notification", None)
    actions = tuple(_ACTIONS.validate_python(document.pop("actions", [])))
    return Shipped(**document, actions=actions, notification=(told["subject"], told["body"]) if told else None)
