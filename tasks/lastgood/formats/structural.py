"""What may be resumed of a directory of checkpoints that nobody sealed: by the framework's own rule, and by ours.

Decides which one is offered: the newest that its reader and its containers say training can resume from. Leaves the
framework's rule to `Reader.choose`. Rules: what a gate or a rollback refused is not offered by this door either; where
the framework would load something else, or nothing, that is said; payload is read only when it is asked for; nothing is
never offered in silence. Source: docs/operations.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lastgood.errors import ReadLimitError, StoreTransientError, UsageError
from lastgood.formats import readers
from lastgood.formats.description import Restorability
from lastgood.formats.emptiness import is_no_checkpoint, may_be_checkpoints
from lastgood.formats.examination import Examination, examine
from lastgood.formats.givenup import GivenUp
from lastgood.formats.recognition import describe, recognise
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source, open_source
from lastgood.formats.trees import is_checkpoint_file
from lastgood.identity import GenerationId
from lastgood.location import Location, Place
from lastgood.protocol import Survey, perform, take_survey
from lastgood.text import counted
from lastgood.verdict import Finding, Note, NoteReason, Reason
from lastgood.verify import Depth, Inspection, read_whole
from lastgood.verify.reading import read_commit_marker

__all__ = ["Ordered", "PassedOver", "StructuralOffer", "choose_structurally", "framework_choice", "newest_first"]

_LIKE_A_CHECKPOINT = re.compile(r"\d|last|latest|checkpoint|ckpt", re.IGNORECASE)
"""Of links: many a run's directory holds one to its data, which nobody resumes."""
ASK_ABOVE = "ask the directory above it; `lastgood inspect` says what this one is"
MAXIMUM_NAMED = 5
"""Of what stands against a fresh start; more are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A checkpoint that was not offered.

    Args:
        name: Under the directory.
        restorability: What training could do with it; None where nobody looked, for it is refused.
        findings: Why; never empty.
    """

    name: str
    restorability: Restorability | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuralOffer:
    """What may be resumed.

    Args:
        name: Under the directory, or None.
        uri: What to load, or None.
        step: Of it, or None where nothing is offered.
        examination: What was found of it.
        rule: The framework's own, and what that would load; None where no framework names its checkpoints so.
        passed_over: Newer ones, newest first, and why.
        findings: Why there is nothing, when there is nothing.
        notes: What is worth saying about the offer.
        is_empty: No save was ever finished there, no commit is on record and nothing that may be a checkpoint lies
            there, so a fresh start would lose nothing.
    """

    name: str | None
    uri: str | None
    step: int | None
    examination: Examination | None
    rule: Choice | None
    passed_over: tuple[PassedOver, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    is_empty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Checkpoints in the order in which they are looked at.

    Args:
        uncertain: Torn ones that tell no step, so that each may be the newest; none of them can be resumed.
        falling: All others, newest first; at the end those whose step nobody knows.
    """

    uncertain: tuple[Source, ...]
    falling: tuple[Source, ...]


def choose_structurally(place: Place, *, deep: bool = False, may_be_absent: bool = False) -> StructuralOffer:
    """The newest checkpoint of a directory that training can resume from, judged without a manifest.

    Args:
        place: The directory.
        deep: Also compare every byte that a checksum covers, of each until one holds.
        may_be_absent: A directory that is not there is one that holds nothing yet: a first start makes it.

    Raises:
        UsageError: It is a checkpoint itself, or nothing lies there and may not, or generations were published there.
        FormatError: A document of ours that decides is not lawful.
        ReadLimitError: One that may be the newest is more than is read here; never an older one instead.
        StoreError: The store could not tell, or could not read all of the checkpoint that would be offered; never an
            older checkpoint instead.
    """
    if place.is_file:
        raise UsageError(f"names a file, not a directory of checkpoints: {place.uri}", hint=ASK_ABOVE)
    return _Choosing(place, deep, may_be_absent).run()


def framework_choice(root: Root) -> Choice | None:
    """What the framework whose names these are would resume; None where no framework names its checkpoints so.

    Raises:
        StoreError: The store could not tell.
    """
    named = None
    for reader in readers.READERS:
        choice = reader.choose(root)
        if choice is not None and not choice.is_only_named:
            # Tags of one's own (`step-12` by DeepSpeed's `latest`) tell the order of what a pointer names.
            return choice if choice.candidates or named is None else replace(choice, candidates=named.candidates)
        named = named or choice
    return named


def newest_first(sources: Iterable[Source], rule: Choice | None) -> Ordered:
    """Checkpoints of a directory by falling step, in one order for every command.

    Names tell the step where the framework's rule has one for each of its candidates; else each checkpoint states its
    own, and what has none cannot be newer than anything, unless it has none for being torn.

    Raises:
        StoreError: The store could not tell.
    """
    if told := _told_steps(rule):
        falling = sorted(sources, key=lambda one: (one.name in told, told.get(one.name, -1), one.name), reverse=True)
        return Ordered(uncertain=(), falling=tuple(falling))
    stated = sorted(((describe(one).step, one.name, one) for one in sources), key=lambda three: three[1])
    torn = {name for step, name, one in stated if step is None and examine(one).findings}
    stated.sort(key=lambda three: (three[0] is not None, three[0] or 0, three[1]), reverse=True)
    return Ordered(
        uncertain=tuple(one for _, name, one in stated if name in torn),
        falling=tuple(one for _, name, one in stated if name not in torn),
    )


def _told_steps(rule: Choice | None) -> dict[str, int]:
    """Name of each candidate → the step in it; empty where a name has none."""
    candidates = rule.candidates if rule is not None else ()
    told = {one.name: one.step for one in candidates if one.step is not None}
    return told if len(told) == len(candidates) else {}


class _Choosing:
    """One call of `choose_structurally`."""

    def __init__(self, place: Place, deep: bool, may_be_absent: bool) -> None:
        self._place = place
        self._may_be_absent = may_be_absent
        self._store = place.store
        self._depth = Depth.FULL if deep else Depth.METADATA
        self._root = Root(store=place.store, prefix=place.key, names=place.store.names(place.key))
        self._refused = _Refused(place)
        self._passed: list[PassedOver] = []

    def run(self) -> StructuralOffer:
        rule = framework_choice(self._root)
        self._refuse_checkpoint(rule)
        self._refuse_generations()
        if self._refused.quarantine:
            message = f"family quarantined by {', '.join(self._refused.quarantine)}: nothing unproven is offered"
            return self._offer(None, rule, Reason.FAMILY_QUARANTINED, message)
        for source in self._newest_first(rule):
            examined = self._examine(source)
            if examined is not None:
                return self._offer((source.name, examined), rule, None, "")
        against = self._against_fresh(rule)
        message = (
            f"nothing may be resumed: {self._place.uri}: of {counted(len(self._passed), 'checkpoint')} none can be"
        )
        if not self._passed:
            message = f"nothing to resume: {self._place.uri} holds no checkpoint that is known here"
        if against:
            shown = ", ".join(against[:MAXIMUM_NAMED])
            more = f" and {len(against) - MAXIMUM_NAMED} more" if len(against) > MAXIMUM_NAMED else ""
            message += f"; a save may have been finished: {shown}{more}"
        all_unfinished = all(one.restorability is Restorability.IN_PROGRESS for one in self._passed)
        is_empty = all_unfinished and not against
        return self._offer(None, rule, Reason.NOTHING_TO_RESUME, message, is_empty=is_empty)

    def _refuse_checkpoint(self, rule: Choice | None) -> None:
        if rule is not None:
            return
        source = open_source(self._store, self._place.key)
        if source is None and not self._may_be_absent:
            raise UsageError(f"no directory: {self._place.uri}: nothing lies there", hint="is the path spelled right?")
        if source is not None and recognise(source) is not None:
            raise UsageError(
                f"names a checkpoint, not a directory of them: {self._place.uri}",
                hint=ASK_ABOVE,
            )

    def _refuse_generations(self) -> None:
        """What was published is ordered by incarnation, then step, and claims decide: none of it is known here."""
        published = self._refused.published
        if published:
            raise UsageError(
                f"generations of lastgood's own: {self._place.uri}: {len(published)}, the newest {max(published)}; the "
                f"structural policy is for checkpoints that nobody published",
                hint="leave out --policy structural: the other policies order them by incarnation, then step",
            )

    def _newest_first(self, rule: Choice | None) -> Iterator[Source]:
        """Checkpoints by falling step; one that is refused, empty or unlike a checkpoint is told as passed over."""
        if told := _told_steps(rule):
            # The names tell the order, so that nothing older than what is offered is listed.
            for name in sorted(told, key=lambda name: (told[name], name), reverse=True):
                source = self._open(name, is_named=True)
                if source is not None:
                    yield source
            return
        named = [one.name for one in rule.candidates] if rule is not None else []
        others = [
            name
            for name in (*self._root.names.directories, *filter(is_checkpoint_file, self._root.names.files))
            if not name.startswith(".")
        ]
        opened = [self._open(name, is_named=bool(named)) for name in named or others]
        ordered = newest_first([source for source in opened if source is not None], rule)
        yield from (*ordered.uncertain, *ordered.falling)

    def _open(self, name: str, *, is_named: bool) -> Source | None:
        refused = self._refused.findings(name)
        if refused:
            self._passed.append(PassedOver(name=name, restorability=None, findings=refused))
            return None
        source = open_source(self._store, f"{self._place.key}/{name}")
        if source is None or not source.files:
            if is_named:
                message = f"save unfinished: {name}: a directory under a checkpoint's name, and nothing in it"
                finding = Finding(reason=Reason.SAVE_UNFINISHED, message=message, offender=name)
                self._passed.append(PassedOver(name=name, restorability=Restorability.IN_PROGRESS, findings=(finding,)))
            return None
        return source if is_named or recognise(source) is not None else None

    def _examine(self, source: Source) -> Examination | None:
        """What was found of it; None where it is not to be offered, which is told as passed over.

        Raises:
            ReadLimitError: There is more in it than is read here.
            StoreTransientError: Nothing speaks against it, and the store could not read all of it.
        """
        name, depth = source.name, self._depth
        sealed = self._refused.kept(name)
        if sealed is not None and depth is Depth.FULL:
            # Every byte has a digest on record, and was looked into when it was sealed.
            wrong, depth = self._refused.read_whole(sealed), Depth.METADATA
            if wrong:
                self._passed.append(PassedOver(name=name, restorability=Restorability.DAMAGED, findings=wrong))
                return None
        examined = examine(source, depth=depth)
        if examined.could_not_tell:
            raise ReadLimitError(
                f"{self._place.uri}/{name}: {'; '.join(examined.classification.reasons)}",
                hint="it may be whole and the newest: nothing older is offered in its place",
            )
        if examined.restorability is not Restorability.RESUMABLE:
            why = examined.findings or (_unfit(name, examined),)
            self._passed.append(PassedOver(name=name, restorability=examined.restorability, findings=why))
            return None
        if not examined.is_resumable:
            unread = examined.integrity.unread
            raise StoreTransientError(
                f"could not tell: {self._place.uri}/{name}: could not read {counted(len(unread), 'part')}: {unread[0]}",
                hint="ask again when the store answers: an older checkpoint may not be the newest that is whole",
            )
        return examined

    def _against_fresh(self, rule: Choice | None) -> tuple[str, ...]:
        """What says, beside the checkpoints passed over, that a save may have been finished here."""
        passed = {one.name for one in self._passed}
        passed |= {name for name, target in self._root.links().items() if target in passed}
        pointer = rule.pointer if rule is not None and rule.pointer in self._root.names.files else None
        unknown = may_be_checkpoints(self._store, self._place.key, self._root.names, passed)
        # A pointer is written last: what it names was finished, though it be gone.
        return tuple(dict.fromkeys((*self._refused.commits, *([pointer] if pointer is not None else []), *unknown)))

    def _offer(
        self,
        picked: tuple[str, Examination] | None,
        rule: Choice | None,
        reason: Reason | None,
        message: str,
        *,
        is_empty: bool = False,
    ) -> StructuralOffer:
        findings = () if reason is None else (Finding(reason=reason, message=message, offender=self._place.name),)
        name, examined = picked if picked is not None else (None, None)
        return StructuralOffer(
            name=name,
            uri=f"{self._place.uri}/{name}" if name is not None else None,
            step=examined.step if examined is not None else None,
            examination=examined,
            rule=rule,
            passed_over=tuple(self._passed),
            findings=(*findings, *(rule.findings if rule is not None and picked is None else ())),
            notes=(
                *(examined.notes if examined is not None else ()),
                *self._difference(name, rule),
                *self._unfollowed(),
            ),
            is_empty=is_empty,
        )

    def _unfollowed(self) -> Iterator[Note]:
        """A link to a neighbour is that neighbour; one that leads elsewhere may be the newest, and is not looked at."""
        beside = {*self._root.names.files, *self._root.names.directories}
        for name, target in self._root.links().items():
            if target not in beside and _LIKE_A_CHECKPOINT.search(name) and not is_no_checkpoint(name):
                message = f"a link that is not followed: {name}: leads to {target}, which the framework may load"
                yield Note(reason=NoteReason.CHOICES_DIFFER, message=message, offender=name)

    def _difference(self, name: str | None, rule: Choice | None) -> Iterator[Note]:
        if rule is None or rule.is_only_named:
            return
        for finding in rule.findings if name is not None else ():
            yield Note(reason=NoteReason.CHOICES_DIFFER, message=finding.message, offender=finding.offender)
        if rule.picked != name and rule.picked is not None:
            passed = next((one for one in self._passed if one.name == rule.picked), None)
            why = f", which is {passed.restorability or 'refused'}: {passed.findings[0].message}" if passed else ""
            message = f"the framework would load {rule.picked} ({rule.rule}){why}"
            yield Note(reason=NoteReason.CHOICES_DIFFER, message=message, offender=rule.picked)
        elif rule.picked is None and name is not None:
            does = rule.consequence or "loads nothing"
            message = f"the framework {does} ({rule.rule})"
            yield Note(reason=NoteReason.CHOICES_DIFFER, message=message, offender=rule.pointer or name)


class _Refused:
    """What is on record against the checkpoints of a directory, where it is a family of ours too."""

    def __init__(self, place: Place) -> None:
        self._family: Location | None = place.family_of_children
        self._survey: Survey | None = None
        self._given_up: GivenUp | None = None
        family = self._family
        if family is None or not family.store.names(family.keys.ours).directories:
            return
        self._survey = perform(family.store, take_survey(family.keys))
        self._given_up = GivenUp(family, self._survey)

    @property
    def quarantine(self) -> tuple[str, ...]:
        return self._survey.quarantine if self._survey is not None else ()

    @property
    def published(self) -> tuple[GenerationId, ...]:
        """Generations that are no foreign checkpoints, whatever became of them."""
        survey = self._survey
        return tuple(one for one in (*survey.candidates, *survey.fenced) if not one.name) if survey is not None else ()

    @property
    def commits(self) -> tuple[str, ...]:
        """Every commit on record, whatever became of it, so also one that was cut, barred, burned or is misspelled."""
        survey, family = self._survey, self._family
        if survey is None or family is None:
            return ()
        lawful = (f"{family.keys.commits}/{one}" for one in (*survey.candidates, *survey.fenced))
        unlawful = (f"{family.keys.ours}/{one}" for one in survey.malformed if one.startswith("commits/"))
        return (*lawful, *unlawful)

    def kept(self, name: str) -> GenerationId | None:
        """As which generation the branch that is kept has it sealed; None: nobody sealed it."""
        candidates = self._survey.candidates if self._survey is not None else ()
        return next((one for one in candidates if one.name == name), None)

    def read_whole(self, generation: GenerationId) -> tuple[Finding, ...]:
        """What its digests on record speak against.

        Raises:
            StoreError: The store could not tell.
        """
        family = self._family
        return read_whole(family.store, family.keys, generation) if family is not None else ()

    def findings(self, name: str) -> tuple[Finding, ...]:
        """Why a checkpoint is refused whatever its files say; empty: nothing is on record against it."""
        survey, family = self._survey, self._family
        if survey is None or family is None:
            return ()
        kept = self.kept(name)
        if kept is not None and kept in survey.barred:
            message = f"a fail is on record: {kept}: refusals/{', '.join(survey.barred[kept])}"
            return (Finding(reason=Reason.GENERATION_BARRED, message=message, offender=name),)
        if kept is not None:
            marker = read_commit_marker(family.store, family.keys, kept)
            return (
                marker.findings if marker.marker is None else Inspection(family.store, family.keys)(kept, marker.marker)
            )
        if self._given_up is not None and self._given_up.holds(name):
            message = f"not kept by the rollback of incarnation {survey.cut.decided_by}: {name}"
            return (Finding(reason=Reason.GENERATION_FENCED, message=message, offender=name),)
        return ()


def _unfit(name: str, examined: Examination) -> Finding:
    """Why a checkpoint that nothing was found against is not offered all the same."""
    is_export = examined.restorability is Restorability.WEIGHTS_ONLY
    return Finding(
        reason=Reason.PURPOSE_NOT_RESUMABLE if is_export else Reason.COMPONENT_MISSING,
        message=f"{examined.restorability}: {name}: {'; '.join(examined.classification.reasons)}",
        offender=name,
    )
