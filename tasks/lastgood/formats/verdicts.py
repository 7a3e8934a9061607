"""Tier 1 of a checkpoint without a manifest: what was found of it, as a verdict like every other.

Decides which check a finding belongs to, and what a pass needs. Leaves finding to `examination`. Rules: the rung says
that there was no manifest, so such a pass replaces none that had one; what is unknown is inconclusive, never a pass and
never a fail; nothing is recorded, for no manifest names the bytes that were judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from lastgood.formats.description import Restorability
from lastgood.formats.examination import Examination, examine
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.formats.structural import framework_choice, newest_first
from lastgood.formats.trees import find_checkpoints, is_one_checkpoint
from lastgood.location import Place
from lastgood.reasons import Reason
from lastgood.text import counted
from lastgood.verdict import Check, CheckState, Finding, Rung, Tier, Verdict, judge
from lastgood.verify import Depth

__all__ = ["judge_checkpoint", "judge_root", "verify_place"]

_CHECK_OF = {
    Reason.CONTAINER_MALFORMED: "containers",
    Reason.RECORD_CORRUPT: "checksums",
    Reason.GLOBAL_NOT_ALLOWED: "containers",
    Reason.SIZE_MISMATCH: "containers",
    Reason.ARTIFACT_NOT_REGULAR: "containers",
    Reason.COUNTERS_DISAGREE: "consistency",
    Reason.GENERATIONS_MIXED: "consistency",
    Reason.RANK_DUPLICATED: "consistency",
    Reason.UNEXPECTED_FILE: "unexpected_files",
    Reason.COMPONENT_MISSING: "components",
    Reason.PURPOSE_NOT_RESUMABLE: "purpose",
}
"""Which check a finding belongs to; all others say that something is not there, and belong to `completeness`."""

REQUIRED = ("recognised", "completeness", "components", "containers", "consistency", "unexpected_files", "purpose")


def verify_place(place: Place, source: Source, *, every: bool, read_payload: bool) -> list[Verdict]:
    """Tier 1 of a checkpoint; of a directory of them, what its pointer says, and of the newest or of each.

    Args:
        place: Which.
        source: What lies there.
        every: Of a directory: each, newest first, not only the newest and what may be newer.
        read_payload: Compare every byte that a checksum covers.

    Raises:
        StoreError: The store could not tell.
    """
    depth = Depth.FULL if read_payload else Depth.METADATA
    if is_one_checkpoint(source):
        return [judge_checkpoint(place.key, examine(source, depth=depth))]
    rule = framework_choice(Root(store=place.store, prefix=place.key, names=place.store.names(place.key)))
    found = newest_first(find_checkpoints(place.store, place.key, deep=False), rule)
    return [
        judge_root(place.key, rule, len(found.uncertain) + len(found.falling)),
        *(
            judge_checkpoint(f"{place.key}/{one.name}", examine(one, depth=depth))
            for one in (*found.uncertain, *(found.falling if every else found.falling[:1]))
        ),
    ]


def judge_checkpoint(subject: str, examined: Examination) -> Verdict:
    """What tier 1 says of a checkpoint that nobody sealed.

    Args:
        subject: `<directory>/<checkpoint>`.
        examined: What was found of it.
    """
    return judge(
        tier=Tier.MANIFEST,
        rung=Rung.STRUCTURAL,
        subject=subject,
        checks=_checks(examined),
        notes=examined.notes,
        required=REQUIRED,
    )


def _checks(examined: Examination) -> Iterator[Check]:
    description = examined.description
    is_judged = description.framework.is_judged
    what = f"{description.framework} {description.version or ''}".strip()
    yield Check(
        name="recognised",
        state=CheckState.RAN if is_judged else CheckState.INCONCLUSIVE,
        detail=f"{what}, {description.layout_name}; no manifest: nobody sealed it",
    )
    if not is_judged:
        return
    if examined.could_not_tell:
        told = "; ".join(examined.classification.reasons)
        yield from (Check(name=name, state=CheckState.INCONCLUSIVE, detail=told) for name in REQUIRED[1:])
        return
    by_check: dict[str, list[Finding]] = {}
    for finding in (*examined.findings, *_purpose(examined)):
        by_check.setdefault(_CHECK_OF.get(finding.reason, "completeness"), []).append(finding)
    position = "not told" if description.step is None else description.step
    files = counted(len(examined.source.files), "file")
    details = {
        "completeness": f"{files}; {description.marker or 'no marker of the framework'}",
        "components": ", ".join(sorted({held.component for held in description.components})) or "none",
        "containers": f"{counted(examined.integrity.coverage.files, 'file')}, by their structure",
        "consistency": f"step {position}; {counted(len(description.fingerprints), 'fingerprint')}",
        "unexpected_files": f"found {files}",
        "purpose": str(examined.restorability),
    }
    for name, detail in details.items():
        yield Check(name=name, state=CheckState.RAN, detail=detail, findings=tuple(by_check.get(name, ())))
    yield _checksums(examined)


def _checksums(examined: Examination) -> Check:
    """Whether whatever has a checksum was compared with it."""
    integrity = examined.integrity
    if integrity.unread:
        detail = f"could not read {len(integrity.unread)}: {'; '.join(integrity.unread[:5])}"
        return Check(name="checksums", state=CheckState.INCONCLUSIVE, detail=detail)
    if integrity.depth is Depth.METADATA:
        return Check(name="checksums", state=CheckState.NOT_RUN, detail="payload was not read: depth is metadata")
    wrong = tuple(finding for finding in examined.findings if finding.reason is Reason.RECORD_CORRUPT)
    return Check(name="checksums", state=CheckState.RAN, detail=integrity.summary, findings=wrong)


def _purpose(examined: Examination) -> Iterator[Finding]:
    """A class that refuses without a finding of its own: the checkpoint is whole, and not one to resume."""
    if examined.restorability in (Restorability.WEIGHTS_ONLY, Restorability.PARTIAL) and not examined.findings:
        message = f"not resumable: {examined.source.name}: {'; '.join(examined.classification.reasons)}"
        yield Finding(reason=Reason.PURPOSE_NOT_RESUMABLE, message=message, offender=examined.source.name)


def judge_root(subject: str, rule: Choice | None, recognised: int) -> Verdict:
    """What is said of a directory of checkpoints: whether the framework's own pointer leads anywhere.

    Args:
        subject: The directory.
        rule: What the framework would resume.
        recognised: How many checkpoints lie there.
    """
    found = Check(
        name="recognised",
        state=CheckState.RAN if recognised else CheckState.INCONCLUSIVE,
        detail=f"{counted(recognised, 'checkpoint')}; no family of ours: nobody sealed one",
    )
    rule = None if rule is not None and rule.is_only_named else rule
    told = "no framework's names" if rule is None else f"{rule.rule}: {rule.picked or rule.consequence or 'nothing'}"
    pointer = Check(
        name="pointer",
        state=CheckState.NOT_RUN if rule is None else CheckState.RAN,
        detail=told,
        findings=rule.findings if rule is not None else (),
    )
    return judge(
        tier=Tier.MANIFEST,
        rung=Rung.STRUCTURAL,
        subject=subject,
        checks=(found, pointer),
        required=("recognised",),
    )
