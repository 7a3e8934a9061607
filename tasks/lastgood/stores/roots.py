"""How the root of a store is spelled: a plain path, `file:///…` or `s3://bucket/prefix`.

Decides which spellings are lawful, and which one of a root is looked up. Opens nothing and needs no client. Rule: a
scheme has one spelling, in lowercase, for every place that asks by it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from lastgood.errors import UsageError
from lastgood.text import printable

__all__ = ["Bucket", "is_path", "local_path", "normal_root", "parse_s3_uri", "unlinked"]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", re.ASCII)


class Bucket(NamedTuple):
    """A bucket and the prefix in it that is a store's root; the prefix has no slash at either end."""

    name: str
    prefix: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


def parse_s3_uri(uri: str) -> Bucket:
    """Split `s3://bucket/prefix`.

    Raises:
        UsageError: It names no bucket, or holds what S3 would read as a query or as an empty name.
    """
    name, _, prefix = uri.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/")
    if not uri.startswith("s3://") or not _BUCKET.fullmatch(name):
        raise UsageError(f"not a bucket: {printable(uri)}: expected s3://bucket/prefix")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise UsageError(f"not a prefix: {printable(uri)}: expected names between single slashes")
    return Bucket(name, prefix)


def is_path(root: str) -> bool:
    """Whether a root is written as a plain path, without any scheme."""
    return "://" not in root and not root.startswith("file:")


def local_path(uri: str) -> Path:
    """The file-system path that a `file://` URI or a plain path names.

    Raises:
        UsageError: Another scheme, a host, an empty path, or one that is not UTF-8 or holds a null character.
    """
    path = _named(uri).absolute()
    if str(path).startswith("//"):
        path = Path(f"/{str(path).lstrip('/')}")  # the same place on Linux, and every root is looked up by its spelling
    if "\0" in str(path):
        raise UsageError(f"not a path: {str(path)!r}: expected one without a null character")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        # It goes into records, manifests and the environment of replicas, and none of them could carry it.
        raise UsageError(f"not UTF-8: {path}: expected a root whose path is text") from None
    return path


def _named(uri: str) -> Path:
    if not uri:
        raise UsageError("empty location: expected a path or file:///…")
    if is_path(uri):
        return Path(uri)
    if not uri.startswith("file:"):
        scheme = uri.partition("://")[0]
        raise UsageError(f"unsupported scheme {scheme!r} in {uri}: expected a path, file:///… or s3://…")
    try:
        parts = urlsplit(uri)
    except ValueError:  # a bracket, as of an IPv6 address
        parts = None
    # A relative one would be another place for each directory that a command is run in.
    if parts is None or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UsageError(f"not an absolute file URI: {uri}: expected file:///path")
    return Path(os.fsdecode(unquote_to_bytes(parts.path)))


def normal_root(root: str) -> str:
    """A root as every other place spells it: `s3://bucket/prefix` or an absolute path, without a slash at its end.

    Raises:
        UsageError: Not a lawful root.
    """
    if root.startswith("s3://"):
        return parse_s3_uri(root).uri
    return os.path.abspath(local_path(root))


def unlinked(root: str) -> str:
    """A root without the links of a file system in its path; a bucket has none."""
    return root if root.startswith("s3://") else os.path.realpath(root)
