"""Who judged: the flow run under way, as `Record.origin` keeps it for people."""

from __future__ import annotations

from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL

__all__ = ["current_origin"]


def current_origin() -> str | None:
    """A link to the page of the flow run, its id where no page is known, None outside of one."""
    if flow_run.id is None:
        return None
    return flow_run.ui_url if PREFECT_UI_URL.value() else f"flow-run/{flow_run.id}"
