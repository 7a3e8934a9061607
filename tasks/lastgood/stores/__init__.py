"""Stores: one small port (`port.Store`), a file system or a bucket behind it, a memory double for models.

What a store may be trusted with is asked before it is (`grading`, `probing`, `s3.probing`). Where a tree may only be
read, what is ours lies in another store (`apart`). How a root is spelled: `roots`.

`open_store(root)` is the only place that knows which URI scheme means which store, `Access` how that of a root is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lastgood.errors import UsageError
from lastgood.stores.local import LocalStore
from lastgood.stores.port import Store
from lastgood.stores.roots import is_path, local_path, normal_root, unlinked
from lastgood.stores.settings import Evidence, StoreSettings, VerifySettings, evidence_of, settings_of, tree_of

__all__ = [
    "Access",
    "LocalStore",
    "Store",
    "StoreSettings",
    "VerifySettings",
    "access_to",
    "is_path",
    "local_path",
    "normal_root",
    "open_store",
    "settings_of",
    "tree_of",
    "unlinked",
]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the store of a configured root is reached, at whatever depth below or above that root it is opened.

    Args:
        settings: How it is spoken to; None: as its own client says.
        evidence: Where what is ours lies; None: beside what is read.
    """

    settings: StoreSettings | None
    evidence: Evidence | None

    def open(self, root: str) -> Store:
        """The store behind a root; see `open_store`.

        Raises:
            UsageError: As of `open_store`.
        """
        store = open_store(root, self.settings)
        if self.evidence is None:
            return store
        # Imported when it is needed, as a bucket's client is.
        from lastgood.stores.apart import ApartStore

        return ApartStore(store, open_store(self.evidence.root, self.evidence.settings), tree_root=self.evidence.tree)


def access_to(uri: str, stores: Mapping[str, StoreSettings]) -> Access:
    """How what a URI names is reached.

    Raises:
        UsageError: As of `evidence_of`.
    """
    if not uri.startswith("s3://"):
        uri = str(local_path(uri))
    return Access(settings=settings_of(uri, stores), evidence=evidence_of(uri, stores))
