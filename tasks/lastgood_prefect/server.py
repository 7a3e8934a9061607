"""The Prefect server that is configured: reached, new enough, or refused in one sentence.

Decides what counts as a usable server; leaves what is done there to `deploying` and `automations`. Rule: the server is
the one that PREFECT_API_URL (or the profile) names; without one, Prefect's client would quietly start another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx
from packaging.version import InvalidVersion, Version
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from lastgood.errors import UsageError
from lastgood_prefect.requests import Unanswered

__all__ = ["OLDEST_SERVER", "connected"]

OLDEST_SERVER: Final = "3.6"
"""What this package asks of Prefect (pyproject.toml); it was not tried with an older server."""
ANSWER_SECONDS: Final = 30.0


@contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """A client of the configured server, which answers and is new enough.

    Raises:
        UsageError: No server is configured, it is too old, or it wants a password.
        Unanswered: It cannot be reached, or did not do what was asked; its own words are in the message.
    """
    url = PREFECT_API_URL.value()
    if not url:
        raise UsageError(
            "no Prefect server configured: PREFECT_API_URL is not set",
            hint="`lastgood up` starts one; or name yours: export PREFECT_API_URL=http://HOST:4200/api",
        )
    try:
        with (
            # A busy SQLite says 503 and undoes what it began. A server that is not there is not asked twice.
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 4}),
            get_client(httpx_settings={"timeout": httpx.Timeout(ANSWER_SECONDS)}, sync_client=True) as client,
        ):
            _check_version(client, url)
            yield client
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise UsageError(
                f"server refuses us: {url}: {status} {error.response.reason_phrase}",
                hint="set PREFECT_API_AUTH_STRING to what the server was given as PREFECT_SERVER_API_AUTH_STRING",
            ) from None
        said = error.response.text[:1000].strip()
        raise Unanswered(f"server refused a request: {url}: {error.request.url.path}: {status}: {said}") from error
    except (httpx.HTTPError, OSError, RuntimeError) as error:
        # RuntimeError: Prefect's own word for a server of another major version.
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise Unanswered(
            f"server cannot be reached: {url}: {said}", hint="does it run, and does this machine reach it?"
        ) from error


def _check_version(client: SyncPrefectClient, url: str) -> None:
    said = str(client.request("GET", "/admin/version").json())
    try:
        version = Version(said)
    except InvalidVersion:
        raise UsageError(f"server is no Prefect server: {url}: it says that its version is {said[:100]!r}") from None
    if version < Version(OLDEST_SERVER):
        raise UsageError(f"server too old: {url}: expected Prefect {OLDEST_SERVER} or newer, found {version}")
