"""What a store behind a URI may be told about itself; everything else comes from the store's own client.

Decides which options there are, and how much of a generation there tier 1 reads on a save. Leaves credentials to
boto3's chain (environment, shared files, container and instance roles): none has a place in a file of ours. An option
that is not set keeps what that chain's configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lastgood.documents import Document
from lastgood.errors import UsageError
from lastgood.stores.roots import unlinked

__all__ = ["Evidence", "StoreSettings", "VerifySettings", "evidence_of", "settings_of", "tree_of"]

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
WhenChecked = Literal["when_supported", "when_required"]


class VerifySettings(Document, frozen=True, kw_only=True):
    """How much of the payload tier 1 reads when it is asked for all that it is asked for here.

    Args:
        mode: `read_all` reads every byte of a save once. `rotating` reads a slice of it, and with every later save the
            next slice; besides, it compares the checksums that the store keeps, where its grade lets them count.
        rotation: Into how many slices a generation is cut; so many saves have read all of it.
        read_all_below_gib: A generation smaller than this is read whole all the same.
        generations: So many of the newest saves are read on when all of them was read; an older one is not.
    """

    mode: Literal["read_all", "rotating"] = "read_all"
    rotation: Annotated[int, Meta(ge=2, le=1000)] = 16
    read_all_below_gib: Annotated[float, Meta(ge=0.0, le=1_000_000.0)] = 0.0
    generations: Annotated[int, Meta(ge=0, le=1000)] = 0

    @property
    def read_all_below_bytes(self) -> int:
        return int(self.read_all_below_gib * 2**30)


class StoreSettings(Document, frozen=True, kw_only=True):
    """How a store is spoken to, and how what lies there is verified; all but `verify` and `evidence` is about buckets.

    Args:
        endpoint: URL of an S3-compatible service; None: as boto3's chain says, else AWS.
        region: Region of the bucket.
        checksum_calculation: When an upload carries a checksum; `when_required` for services that refuse them.
        checksum_validation: When a download is checked against the stored one; `when_required` likewise.
        addressing: Whether the bucket is named in the host or in the path.
        concurrency: Requests of one process at a time, 1 to 64.
        timeout_seconds: Longest silence of the service before a request counts as lost.
        minimum_bytes_per_second: Slowest body of an answer, over each such time, that is still waited for.
        attempts: How often a request is sent before the answer is that the store could not tell.
        verify: How much tier 1 reads.
        evidence: Another root, under which the `.lastgood` of every family lies, where this one may only be read.
    """

    endpoint: Text | None = None
    region: Text | None = None
    checksum_calculation: WhenChecked | None = None
    checksum_validation: WhenChecked | None = None
    addressing: Literal["auto", "path", "virtual"] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 8
    timeout_seconds: Annotated[float, Meta(gt=0.0, le=3600.0)] = 60.0
    minimum_bytes_per_second: Annotated[float, Meta(gt=0.0)] = 10_000.0
    attempts: Annotated[int, Meta(ge=1, le=20)] = 5
    verify: VerifySettings = VerifySettings()
    evidence: Text | None = None

    @property
    def worth_bytes(self) -> float:
        """What the slowest body that is waited for brings within one timeout."""
        return self.minimum_bytes_per_second * self.timeout_seconds

    def reading_seconds(self, size_bytes: int) -> float:
        """Longest that is waited for an object of that size, however often its body breaks off or trickles."""
        return self.attempts * self.timeout_seconds + size_bytes / self.minimum_bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where whatever is ours lies of families that are only read.

    Args:
        tree: The root that they lie under.
        root: The one that takes its place: `<tree>/<path>/.lastgood` is `<root>/<path>/.lastgood`.
        settings: How the store of that one is spoken to.
    """

    tree: str
    root: str
    settings: StoreSettings | None


def settings_of(uri: str, stores: Mapping[str, StoreSettings]) -> StoreSettings | None:
    """The settings of the longest root that a URI lies under; None: of none."""
    roots = _roots_above(uri, stores)
    return stores[max(roots, key=len)] if roots else None


def evidence_of(uri: str, stores: Mapping[str, StoreSettings]) -> Evidence | None:
    """Where evidence lies of what a URI names; None: beside it.

    A longer root that says only how it is verified does not bring evidence back into a tree that is only read.

    Raises:
        UsageError: A link above it leads into a tree whose evidence lies elsewhere, or from one place of it to another:
            by that path nobody would find what is barred there, and a seal would be written into the tree, or be known
            by that path alone.
    """
    found = _evidence_above(uri, stores)
    known = {unlinked(root): root for root, settings in stores.items() if settings.evidence is not None}
    behind = _evidence_above(unlinked(uri), {there: stores[root] for there, root in known.items()}) if known else None
    if behind is None:
        return found
    below = _below(unlinked(uri), behind.tree)
    if found is None or found.root != behind.root or _below(uri, found.tree) != below:
        raise UsageError(
            f"named through a link: {uri}: it is {known[behind.tree].rstrip('/')}{below}, whose evidence lies at "
            f"{behind.root}",
            hint="name it by that path",
        )
    return found


def _below(uri: str, root: str) -> str:
    """The way from a root to what lies below it."""
    return uri.removeprefix(root.rstrip("/"))


def tree_of(uri: str, stores: Mapping[str, StoreSettings]) -> str | None:
    """Where that lies of which a URI names the evidence; None: it names no evidence that lies elsewhere."""
    asked = f"{unlinked(uri)}/"
    for root, settings in stores.items():
        if settings.evidence is not None:
            place = f"{unlinked(settings.evidence).rstrip('/')}/"
            if asked.startswith(place):
                return f"{root.rstrip('/')}/{asked.removeprefix(place)}".rstrip("/")
    return None


def _evidence_above(uri: str, stores: Mapping[str, StoreSettings]) -> Evidence | None:
    said = {root: stores[root].evidence for root in _roots_above(uri, stores)}
    tree = max((root for root, there in said.items() if there is not None), key=len, default=None)
    root = said[tree] if tree is not None else None
    if tree is None or root is None:
        return None
    return Evidence(tree=tree, root=root, settings=settings_of(root, stores))


def _roots_above(uri: str, stores: Mapping[str, StoreSettings]) -> list[str]:
    return [root for root in stores if f"{uri}/".startswith(f"{root.rstrip('/')}/")]
