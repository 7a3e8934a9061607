"""Stores: one small port (`port.Store`), a file system or a bucket behind it, a memory double for models.

What a store may be trusted with is asked before it is (`grading`, `probing`, `s3.probing`).

`open_store(root)` is the only place that knows which URI scheme means which store.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from lastgood.errors import UsageError
from lastgood.stores.local import LocalStore
from lastgood.stores.port import Store
from lastgood.stores.settings import StoreSettings, settings_of

__all__ = ["LocalStore", "Store", "StoreSettings", "local_path", "open_store", "settings_of"]


def local_path(uri: str) -> Path:
    """The file-system path that a `file://` URI or a plain path names.

    Raises:
        UsageError: Another scheme, a host, an empty path, or one that is not UTF-8.
    """
    path = _named(uri).absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        # It goes into records, manifests and the environment of replicas, and none of them could carry it.
        raise UsageError(f"not UTF-8: {path}: expected a root whose path is text") from None
    return path


def _named(uri: str) -> Path:
    if not uri:
        raise UsageError("empty location: expected a path or file:///…")
    if "://" not in uri and not uri.startswith("file:"):
        return Path(uri)
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise UsageError(f"unsupported scheme {parts.scheme!r} in {uri}: expected a path, file:///… or s3://…")
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(f"not an absolute file URI: {uri}: expected file:///path")
    return Path(os.fsdecode(unquote_to_bytes(parts.path)))


def open_store(root: str, settings: StoreSettings | None = None) -> Store:
    """The store behind a root: a plain path, `file:///…` or `s3://bucket/prefix`.

    Args:
        root: Where.
        settings: For a bucket; None: as boto3's chain says.

    Raises:
        UsageError: The scheme is not supported, or its client is not installed.
    """
    if not root.startswith("s3://"):
        return LocalStore(local_path(root))
    try:
        # Imported when it is needed: `latest` on a file system pays nothing for buckets.
        from lastgood.stores.s3 import S3Store
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise UsageError(f"no client for {root}: boto3 is not installed", hint="pip install 'lastgood[s3]'") from None
    return S3Store(root, settings)
