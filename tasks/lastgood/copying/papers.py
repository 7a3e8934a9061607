"""The documents of a family, brought to a copy of it.

Decides which documents a copy holds and which of them never may differ. Rules: claims and decisions are the source's
or the copy is none; what refuses is brought before every COMMIT, what permits after the last, so that whoever asks the
copy meanwhile gets an answer that the source would have given; a refusal of either store stands in both; evidence that
the copy has of itself is kept beside the source's. Verdicts of tier 1 stay where they were found: they speak of the
bytes on one medium, and the copy has others. Source: docs/protocol.md, ADR 0008.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lastgood.digest import Algorithm, hash_bytes
from lastgood.errors import CopyRefused, FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.protocol import Survey
from lastgood.protocol.requests import MAXIMUM_PROTOCOL_DOCUMENT_BYTES
from lastgood.protocol.survey import RefusalName, read_claim_names, read_commit
from lastgood.records import RecordName
from lastgood.stores.port import Store
from lastgood.verdict import Tier

__all__ = ["Papers"]

MAXIMUM_EVIDENCE_BYTES = 64 * 2**20
"""Of one record, or one segment of a trace."""
AT_ONCE = 8
"""Documents on their way; each is a request or two."""


class Papers:
    """The documents of one family on their way.

    Args:
        source: Where they are; only read.
        target: Where they go.
        keys: The family, of one name in both.
    """

    def __init__(self, source: Store, target: Store, keys: FamilyKeys) -> None:
        self._source = source
        self._target = target
        self._keys = keys
        self._settled: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._counting = threading.Lock()
        self.copied = 0

    def bring_what_refuses(self) -> None:
        """Claims, decisions and refusals, as they are at the source now.

        Raises:
            CopyRefused: The destination has lives of its own.
            FormatError: A document vanished from the source, or is none.
            StoreError: A store could not tell.
        """
        keys = self._keys
        # The target first: what it has was at the source before, for there nothing is deleted.
        there = read_claim_names(self._target.names(keys.incarnations).files)
        here = read_claim_names(self._source.names(keys.incarnations).files)
        strange = sorted(set(there.claims) - set(here.claims) or there.resumes - here.resumes)
        if strange:
            raise CopyRefused(
                f"not a copy of {self._source.uri}/{keys.family}: incarnation {strange[0]} of "
                f"{self._target.uri}/{keys.family} is not in it",
                hint="a job was started on the copy, which is the run from then on: copy from there to elsewhere",
            )
        claims = [keys.claim(number) for number in here.claims if number not in here.resumes]
        decided = [key for number in sorted(here.resumes) for key in (keys.claim(number), keys.resume(number))]
        self._each(self._settle, (*claims, *decided))
        # Listed last, as every reader does.
        self._each(self._bring_refusal, self._source.names(keys.refusals).files)

    def create(self, key: str, data: bytes) -> bool:
        """Create a document at the target; False if another lies there."""
        if self._target.create(key, data):
            self._count()
            return True
        return self._target.get(key, limit_bytes=max(len(data), MAXIMUM_PROTOCOL_DOCUMENT_BYTES)) == data

    def bring_what_permits(self, survey: Survey, generations: Collection[GenerationId]) -> None:
        """Evidence, passes and releases.

        Args:
            survey: Of the source, from before anything that refuses was brought.
            generations: What stands at the target.
        """
        keys = self._keys
        self._each(self._bring_trace, self._traces(generations))
        # A fail that is stored meanwhile has its refusal by the time its record is listed: never the record alone.
        records = tuple(self._records(generations))
        self.bring_what_refuses()
        self._each(self._bring_evidence, records)
        self._each(self._bring_evidence, [f"{keys.proven}/{one}" for one in survey.proven if one in generations])
        for name in sorted(survey.released):
            if name in self._refusals and (data := self._read(f"{keys.releases}/{name}")) is not None:
                self.create(f"{keys.releases}/{self._refusals[name]}", data)

    # One document each.

    def _settle(self, key: str) -> None:
        """Bring a document that may not differ; one whose claim was never written, only its decision, is absent."""
        if key in self._settled or (data := self._read(key)) is None:
            return
        if not self.create(key, data):
            raise CopyRefused(
                f"another document at the copy: {self._target.uri}/{key}",
                hint="both stores went on by themselves: copy to an empty place, and decide which run is to live",
            )
        self._settled.add(key)

    def _bring_refusal(self, text: str) -> None:
        if text in self._refusals:
            return
        try:
            name = RefusalName.parse(text)
        except FormatError:
            return  # the family's verification reports the name
        data = self._read(f"{self._keys.refusals}/{text}")
        if data is None:
            raise FormatError(f"document vanished: {self._keys.refusals}/{text}: refusals are never deleted")
        if not self.create(f"{self._keys.refusals}/{name}", data):
            # One of the copy's own stands there; as `protocol.refuse` does, so that no release lifts both.
            name = replace(name, tag=hash_bytes(data, Algorithm.BLAKE3).value[:16])
            self.create(f"{self._keys.refusals}/{name}", data)
        self._refusals[text] = str(name)

    def _bring_evidence(self, key: str) -> None:
        """Bring a document whose name the copy may have given to evidence of its own."""
        data = self._read(key)
        if data is not None:
            self.create(key, data)

    def _bring_trace(self, key: str) -> None:
        """Bring a segment, which grows while its life runs."""
        data = self._read(key)
        if data is not None:
            self._target.replace(key, data)
            self._count()

    # What there is to bring.

    def _records(self, generations: Collection[GenerationId]) -> list[str]:
        prefix = self._keys.records
        there = {stored.key for stored in self._target.walk(prefix)}
        return [
            one.key for one in self._source.walk(prefix) if one.key not in there and self._wants(one.key, generations)
        ]

    def _wants(self, key: str, generations: Collection[GenerationId]) -> bool:
        directory, _, name = key.removeprefix(f"{self._keys.records}/").partition("/")
        generation = GenerationId.find(directory)
        if generation is None or generation not in generations:
            return False
        try:
            return RecordName.parse(generation, name).tier is not Tier.MANIFEST
        except FormatError:
            return False  # a log that a gate left beside its record

    def _traces(self, generations: Collection[GenerationId]) -> list[str]:
        wanted = []
        written = set(self._source.names(self._keys.traces).directories)
        if not written:
            return []
        for life in sorted(written & {self._life(generation) for generation in generations}):
            prefix = f"{self._keys.traces}/{life}"
            there = {stored.key: stored.bytes for stored in self._target.walk(prefix)}
            wanted += [one.key for one in self._source.walk(prefix) if one.bytes > there.get(one.key, -1)]
        return wanted

    def _life(self, generation: GenerationId) -> str:
        """The name of the trace of whoever made it: of a sealed one the nonce in its COMMIT."""
        if not generation.name:
            return f"{generation.incarnation:08d}"
        key = self._keys.commit(generation)
        return read_commit(self._read(key), generation, key).nonce

    def _read(self, key: str) -> bytes | None:
        return self._source.get(key, limit_bytes=MAXIMUM_EVIDENCE_BYTES)

    def _count(self) -> None:
        with self._counting:
            self.copied += 1

    def _each(self, act: Callable[[str], None], keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="lastgood-papers") as workers:
            pending = [workers.submit(act, key) for key in keys]
            try:
                for future in pending:
                    future.result()
            finally:
                for future in pending:
                    future.cancel()
