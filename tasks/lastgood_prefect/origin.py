"""Who judged: the flow run under way, as `Record.origin` keeps it for people."""

from __future__ import annotations

from uuid import UUID

from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

__all__ = ["current_origin"]


def current_origin() -> str | None:
    """A link to the page of the flow run, its id where no page is known, None outside of one."""
    if flow_run.id is None:
        return None
    return url_for("flow-run", obj_id=UUID(flow_run.id)) or f"flow-run/{flow_run.id}"
