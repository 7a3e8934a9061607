"""A sender over real HTTP."""

from __future__ import annotations

import http.client
from collections.abc import Mapping

SECRET = "0123456789abcdef0123456789abcdef"
BEARER = {"Authorization": f"Bearer {SECRET}"}


def post(
    port: int, body: bytes, headers: Mapping[str, str] = BEARER, *, method: str = "POST", path: str = "/events"
) -> tuple[int, str]:
    """Status and text of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body=body, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
