"""Checkpoints in buckets: the store port over the S3 API, by boto3.

- `client`: one request with its retries; what an answer means, and which failures may be repeated.
- `reading`: an object's bytes in order, bound to one version of it, taken up where a body broke off.
- `writing`: files as immutable objects, hashed while they are sent.
- `probing`: what the service really does, asked before it is trusted.
- `store`: the port.
"""

from __future__ import annotations

from lastgood.stores.s3.store import S3Store

__all__ = ["S3Store"]
