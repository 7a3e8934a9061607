"""What a store behind a URI may be told about itself; everything else comes from the store's own client.

Decides which options there are. Leaves credentials to boto3's chain (environment, shared files, container and instance
roles): none has a place in a file of ours. An option that is not set keeps what that chain's configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from lastgood.documents import Document

__all__ = ["StoreSettings", "settings_of"]

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
WhenChecked = Literal["when_supported", "when_required"]


class StoreSettings(Document, frozen=True, kw_only=True):
    """How a bucket is spoken to.

    Args:
        endpoint: URL of an S3-compatible service; None: as boto3's chain says, else AWS.
        region: Region of the bucket.
        checksum_calculation: When an upload carries a checksum; `when_required` for services that refuse them.
        checksum_validation: When a download is checked against the stored one; `when_required` likewise.
        addressing: Whether the bucket is named in the host or in the path.
        concurrency: Requests of one process at a time, 1 to 64.
        timeout_seconds: Longest silence of the service before a request counts as lost.
        attempts: How often a request is sent before the answer is that the store could not tell.
    """

    endpoint: Text | None = None
    region: Text | None = None
    checksum_calculation: WhenChecked | None = None
    checksum_validation: WhenChecked | None = None
    addressing: Literal["auto", "path", "virtual"] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 8
    timeout_seconds: Annotated[float, Meta(gt=0.0, le=3600.0)] = 60.0
    attempts: Annotated[int, Meta(ge=1, le=20)] = 5


def settings_of(uri: str, stores: Mapping[str, StoreSettings]) -> StoreSettings | None:
    """The settings of the longest root that a URI lies under; None: of none."""
    roots = [root for root in stores if f"{uri}/".startswith(f"{root.rstrip('/')}/")]
    return stores[max(roots, key=len)] if roots else None
