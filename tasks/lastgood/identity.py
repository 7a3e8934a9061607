"""Names of things on storage: generations, families, and the keys of every document of ours.

Decides how names are spelled and ordered. Leaves reading and writing to the stores. Rules enforced here: a generation
is `<incarnation:08>-<step:016>`, a sealed foreign one `<incarnation:08>-<step:016>~<name>`, with number 0 until a
rollback; any other spelling is refused; generations order by parsed integers, incarnation first, never by text or clock
(docs/format.md).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from lastgood.errors import FormatError

__all__ = [
    "GRADE",
    "MAXIMUM_INCARNATION",
    "MAXIMUM_STEP",
    "FamilyKeys",
    "GenerationId",
    "check_family_name",
    "check_key",
    "check_paths",
    "is_lawful_key",
]

MAXIMUM_INCARNATION = 10**8 - 1
MAXIMUM_STEP = 10**16 - 1
MAXIMUM_NAME_BYTES = 200
MAXIMUM_KEY_BYTES = 1024

GRADE = ".lastgood/grade.json"
"""What was found of the store itself, beside its families; none of those can have a name that is hidden."""

_GENERATION = re.compile(r"(\d{8})-(\d{16})(?:~(.+))?", re.ASCII)
_STAGING = re.compile(r"(\d{8}-\d{16})~[0-9a-f]{8}", re.ASCII)
# A manifest has up to a million keys, so they are searched by regular expressions, not character by character.
_UNLAWFUL_COMPONENT = re.compile(r"(?:^|/)(\.{0,2})(?:/|\Z)")
_UNLAWFUL_CHARACTER = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


@dataclass(frozen=True, slots=True, order=True)
class GenerationId:
    """One committed (or to be committed) checkpoint of a family.

    Ordering law: `a < b` exactly when `(a.incarnation, a.step, a.name) < (b.incarnation, b.step, b.name)`.
    Round-trip law: `GenerationId.parse(str(g)) == g`.

    Args:
        incarnation: The life of the run that wrote it, 1 and up; of foreign generations sealed where they lie the
            rollback that they came after, 0 for none.
        step: Completed optimizer steps, 0 and up.
        name: Of the directory, or of the single file, that a foreign generation is; empty for our own.
    """

    incarnation: int
    step: int
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.incarnation <= MAXIMUM_INCARNATION:
            raise FormatError(f"incarnation out of range: expected 0..{MAXIMUM_INCARNATION}, found {self.incarnation}")
        if not 0 <= self.step <= MAXIMUM_STEP:
            raise FormatError(f"step out of range: expected 0..{MAXIMUM_STEP}, found {self.step}")
        if self.incarnation == 0 and not self.name:
            raise FormatError("generation without a name: incarnation 0 holds foreign generations, which carry one")
        if self.name:
            # It is one directory of the family and a part of one file name under each of our prefixes.
            check_key(self.name)
            if "/" in self.name or self.name.startswith(".") or len(self.name.encode()) > MAXIMUM_NAME_BYTES:
                raise FormatError(
                    f"not a foreign generation's name: expected one visible path component of at most "
                    f"{MAXIMUM_NAME_BYTES} bytes, found {self.name[:80]!r}"
                )

    def __str__(self) -> str:
        suffix = f"~{self.name}" if self.name else ""
        return f"{self.incarnation:08d}-{self.step:016d}{suffix}"

    @property
    def directory(self) -> str:
        """Where it lies under the family: a directory, or of a sealed one perhaps a file (`Manifest.prefix`)."""
        return self.name or str(self)

    @classmethod
    def parse(cls, text: str) -> GenerationId:
        """Read the one lawful spelling.

        Raises:
            FormatError: The text is spelled in any other way.
        """
        match = _GENERATION.fullmatch(text)
        if match is None:
            raise FormatError(f"not a generation id: expected <incarnation:8 digits>-<step:16 digits>, found {text!r}")
        return cls(int(match[1]), int(match[2]), match[3] or "")

    @classmethod
    def find(cls, text: str) -> GenerationId | None:
        """The generation of this name, or None where it names none: whatever may lie in a directory of ours."""
        try:
            return cls.parse(text)
        except FormatError:
            return None

    @classmethod
    def of_staging(cls, name: str) -> GenerationId | None:
        """The generation that a staging directory of this name was to become, or None where it is no such name."""
        match = _STAGING.fullmatch(name)
        return cls.find(match[1]) if match is not None else None


def check_key(key: str) -> str:
    """Refuse a key that could leave its root or that another system would read differently; return it unchanged.

    Raises:
        FormatError: Empty, absolute, too long, or with an empty, `.`, `..` or control-character component.
    """
    if not key or len(key.encode("utf-8", "surrogatepass")) > MAXIMUM_KEY_BYTES:
        raise FormatError(f"key length out of range: expected 1..{MAXIMUM_KEY_BYTES} bytes, found {key[:80]!r}")
    if (match := _UNLAWFUL_COMPONENT.search(key)) is not None:
        raise FormatError(f"key escapes or is not canonical: component {match[1]!r} in {key!r}")
    if (match := _UNLAWFUL_CHARACTER.search(key)) is not None:
        raise FormatError(f"key has a control character, backslash or half a surrogate pair: {match[0]!r} in {key!r}")
    return key


def is_lawful_key(key: str) -> bool:
    """Whether `check_key` accepts it."""
    try:
        check_key(key)
    except FormatError:
        return False
    return True


def check_paths(paths: Iterable[str], where: str) -> None:
    """Refuse paths that cannot lie together in one directory of every file system.

    Args:
        paths: Relative to one directory.
        where: What to name in the error.

    Raises:
        FormatError: One is not a lawful key, two are twins, or one is file and directory at once.
    """
    seen: dict[str, str] = {}
    for path in paths:
        check_key(path)
        # File systems that fold case or normalise Unicode would merge twins into one file.
        folded = path.lower() if path.isascii() else unicodedata.normalize("NFC", path).casefold()
        if folded in seen:
            raise FormatError(f"paths are twins: {where}: {seen[folded]!r} and {path!r}")
        seen[folded] = path
    directories: set[str] = set()
    for folded, path in seen.items():
        parent = folded.rpartition("/")[0]
        # Whatever lies above a directory that was looked at has been looked at too.
        while parent and parent not in directories:
            if parent in seen:
                raise FormatError(f"a path is both file and directory: {where}: {seen[parent]!r} and {path!r}")
            directories.add(parent)
            parent = parent.rpartition("/")[0]


def check_family_name(name: str) -> str:
    """Refuse a family name that is not one visible path component; return it unchanged.

    Raises:
        FormatError: More than one component, hidden, or longer than 200 bytes.
    """
    check_key(name)
    if "/" in name or name.startswith(".") or len(name.encode()) > MAXIMUM_NAME_BYTES:
        raise FormatError(
            f"not a family name: expected one visible path component of at most {MAXIMUM_NAME_BYTES} bytes, "
            f"found {name!r}"
        )
    return name


@dataclass(frozen=True, slots=True)
class FamilyKeys:
    """Every key of one family, relative to the store's root (docs/format.md)."""

    family: str

    def __post_init__(self) -> None:
        check_family_name(self.family)

    @property
    def ours(self) -> str:
        return f"{self.family}/.lastgood"

    @property
    def incarnations(self) -> str:
        return f"{self.ours}/incarnations"

    @property
    def manifests(self) -> str:
        return f"{self.ours}/manifests"

    @property
    def commits(self) -> str:
        return f"{self.ours}/commits"

    @property
    def omitted(self) -> str:
        return f"{self.ours}/omitted"

    @property
    def refusals(self) -> str:
        return f"{self.ours}/refusals"

    @property
    def releases(self) -> str:
        return f"{self.ours}/releases"

    @property
    def proven(self) -> str:
        return f"{self.ours}/proven"

    @property
    def records(self) -> str:
        return f"{self.ours}/records"

    @property
    def traces(self) -> str:
        return f"{self.ours}/traces"

    @property
    def staging(self) -> str:
        return f"{self.ours}/staging"

    @property
    def last_good(self) -> str:
        return f"{self.ours}/LAST_GOOD"

    @property
    def quarantine(self) -> str:
        return f"{self.ours}/QUARANTINE"

    def claim(self, incarnation: int) -> str:
        return f"{self.incarnations}/{incarnation:08d}"

    def resume(self, incarnation: int) -> str:
        return f"{self.incarnations}/{incarnation:08d}.resume"

    def active(self, incarnation: int) -> str:
        return f"{self.incarnations}/{incarnation:08d}.active"

    def manifest(self, generation: GenerationId) -> str:
        return f"{self.manifests}/{generation}.json"

    def commit(self, generation: GenerationId) -> str:
        return f"{self.commits}/{generation}"

    def artifacts(self, generation: GenerationId) -> str:
        return f"{self.family}/{generation.directory}"
