"""What is said of the integrity of a checkpoint.

Decides in which words bytes are counted. Law: `matching + pending + unrecorded + bare` is at most `total`; what is
left are the containers' own headers, which were compared with each other.
"""

from __future__ import annotations

from lastgood.documents import Document
from lastgood.text import size
from lastgood.verdict import Finding, Note
from lastgood.verify import Depth

__all__ = ["Coverage", "Integrity"]


class Coverage(Document, frozen=True, kw_only=True):
    """How many bytes of a checkpoint are covered by what, each in bytes.

    Args:
        files: How many regular files there are.
        total: Their length.
        matching: Payload that was read and matches the checksum beside it.
        pending: Payload with a checksum that was not read, for the depth or for trouble.
        unrecorded: Payload in containers that have checksums, whose writer left them out.
        bare: Payload in formats that have no checksum.
    """

    files: int
    total: int
    matching: int
    pending: int
    unrecorded: int
    bare: int

    def summary(self, depth: Depth) -> str:
        """One sentence, which begins with what was done.

        Args:
            depth: How far was looked.
        """
        if depth is Depth.METADATA:
            parts = [f"by structure alone, payload was not read: {size(self.total)}"]
        else:
            parts = [f"payload was read: {size(self.matching)} of {size(self.total)} match the checksums inside"]
        if self.pending:
            parts.append(f"{size(self.pending)} have checksums that were not compared")
        if self.unrecorded:
            parts.append(f"{size(self.unrecorded)} were written with checksums switched off")
        if self.bare:
            parts.append(f"{size(self.bare)} are covered by no checksum")
        if headers := self.total - self.matching - self.pending - self.unrecorded - self.bare:
            parts.append(f"the other {size(headers)} are headers, which were compared with each other")
        return "; ".join(parts)


class Integrity(Document, frozen=True, kw_only=True):
    """What a checkpoint's files say of themselves.

    Args:
        depth: `metadata` compared structure, `full` also read the payload.
        coverage: What covers which bytes.
        findings: Bytes that are not those that were written; structure that makes no sense; one rank's state twice.
        notes: What no checksum covers.
        unread: What could not be read, for the store's sake: nothing is known of it.
        unknowable: Sentences about what nobody can tell from the files.
        untold: Sentences about files that are more than is read here, so that nothing is known of them.
    """

    depth: Depth
    coverage: Coverage
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    unread: tuple[str, ...] = ()
    unknowable: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What was looked at, and what covers which bytes."""
        return self.coverage.summary(self.depth)
