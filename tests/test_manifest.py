"""Manifests: what a lawful one may say, what none may, and that no mutation does anything but be refused."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood import documents
from lastgood.digest import Algorithm, Digest
from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys
from lastgood.manifest import (
    FORMAT_VERSION,
    AbsentComponent,
    Artifact,
    Component,
    ComponentPromise,
    Counter,
    CounterMeaning,
    Determinism,
    Environment,
    Expectations,
    ExplainedKey,
    Identity,
    JobDescription,
    Manifest,
    Purpose,
    RankExpectations,
    SampleIds,
    Topology,
    manifest_bytes,
    manifest_digest,
    parse_manifest,
)
from lastgood.reasons import Reason
from lastgood.seal import Seal

MUTANTS = 20_000
GOLDEN = Path(__file__).parent / "goldens" / "manifests" / "version-1.json"


def digest(fill: str, algorithm: Algorithm = Algorithm.BLAKE3) -> Digest:
    return Digest(algorithm=algorithm, value=fill * 64)


def artifact(path: str, component: Component, rank: int | None = None, **fields: Any) -> Artifact:
    return Artifact(path=path, component=component, rank=rank, **{"bytes": 10, "digests": (digest("a"),), **fields})


def lawful() -> Manifest:
    """A manifest of two ranks that uses every field of the format."""
    ranks = tuple(
        RankExpectations(
            rank=rank,
            sample_ids=SampleIds(ids=(rank, f"document-{rank}")) if rank else SampleIds(from_trace="a live stream"),
            rng_draws={"python": (0.25, 0.5), "cuda:0": (2**40 + rank,)},
            tensor_digests={"model.embedding": str(digest("b"))},
        )
        for rank in range(2)
    )
    return Manifest(
        format_version=1,
        family="llm-7b",
        generation="00000003-0000000000048000",
        incarnation=3,
        step=48_000,
        staging="00000003-0000000000048000~0123abcd",
        created_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        job=JobDescription(
            run="llm-7b pretraining",
            counters=(
                Counter(name="optimizer_step", value=48_000, names=CounterMeaning.COMPLETED),
                Counter(name="tokens", value=2**63 - 1, names=CounterMeaning.NEXT),
            ),
            code="git:0123456",
            configuration=str(digest("c")),
            environment=Environment(
                python="3.11.9",
                lastgood="0.1.0",
                torch="2.10.0",
                cuda="12.8",
                image_digest=f"sha256:{'d' * 64}",
                device="NVIDIA H200",
            ),
            topology=Topology(world_size=2, strategy="fsdp2", layout={"data_parallel": 2, "tensor_parallel": 1}),
            model=Identity(name="llm", revision="7b-1"),
            tokenizer=Identity(name="bytes", revision="1"),
            dataset=Identity(name="pile", revision="2025-12-01"),
            purpose=Purpose.RESUMABLE,
            promises=(
                ComponentPromise(component=Component.MODEL, determinism=Determinism.EXACT),
                ComponentPromise(
                    component=Component.OPTIMIZER,
                    determinism=Determinism.TOLERANCE,
                    tolerance=1e-6,
                    reason="fused kernels reorder sums",
                ),
                ComponentPromise(component=Component.DATA, determinism=Determinism.NONE, reason="a live stream"),
                *(
                    ComponentPromise(component=component, determinism=Determinism.EXACT)
                    for component in (
                        Component.SCHEDULER,
                        Component.ACCUMULATION,
                        Component.RNG,
                        Component.TOPOLOGY,
                        Component.CONFIG,
                    )
                ),
            ),
            absent=(AbsentComponent(component=Component.SCALER, reason="bfloat16 needs no gradient scaler"),),
            explained=(ExplainedKey(key="model.rotary.inverse_frequency", reason="recomputed at the start"),),
        ),
        artifacts=(
            *(
                artifact(f"{component}/rank-{rank:05d}.bin", component, rank)
                for component in (Component.MODEL, Component.OPTIMIZER, Component.RNG)
                for rank in range(2)
            ),
            artifact("Größe/重み.json", Component.CONFIG, digests=(digest("e"), digest("f", Algorithm.SHA256))),
            artifact("data.json", Component.DATA, bytes=0),
            artifact(
                "scheduler.json",
                Component.SCHEDULER,
                digests=(digest("9"), Digest(algorithm=Algorithm.SHA256, value="8" * 64, part_bytes=8 * 2**20)),
            ),
        ),
        expectations=Expectations(
            learning_rates={"decay": 3e-4, "no_decay": 1e-4},
            optimizer_steps={"adamw": 48_000},
            scalars={"scale": 65536.0, "epoch": 3},
            ranks=ranks,
        ),
    )


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    fields = json.loads(manifest_bytes(lawful()))
    change(fields)
    return msgspec.json.encode(fields)


def test_a_lawful_manifest_is_read_back_and_its_digest_is_stable() -> None:
    """The marker names the manifest by the digest of its one canonical spelling."""
    data = manifest_bytes(lawful())
    assert parse_manifest(data, "manifest") == lawful()
    assert manifest_bytes(parse_manifest(data, "manifest")) == data
    assert manifest_digest(data) == manifest_digest(manifest_bytes(lawful()))


def test_version_1_is_still_read(golden: Callable[[str, bytes], None]) -> None:
    """Checkpoints outlive the code that wrote them: this one was written by the first release's format."""
    golden("manifests/version-1.json", manifest_bytes(lawful()))
    assert parse_manifest(GOLDEN.read_bytes(), "version-1.json").format_version == 1


REFUSED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no artifacts": lambda f: f.update(artifacts=[]),
    "an artifact without a digest": lambda f: f["artifacts"][0].update(digests=[]),
    "a digest of another length": lambda f: f["artifacts"][0]["digests"][0].update(value="a" * 63),
    "a digest in capitals": lambda f: f["artifacts"][0]["digests"][0].update(value="A" * 64),
    "a digest with a newline": lambda f: f["artifacts"][0]["digests"][0].update(value="a" * 64 + "\n"),
    "a digest of no algorithm of ours": lambda f: f["artifacts"][0]["digests"][0].update(algorithm="md5"),
    "one digest twice": lambda f: f["artifacts"][0].update(digests=2 * f["artifacts"][0]["digests"]),
    "a negative length": lambda f: f["artifacts"][0].update(bytes=-1),
    "an absurd length": lambda f: f["artifacts"][0].update(bytes=2**63),
    "a fractional length": lambda f: f["artifacts"][0].update(bytes=10.5),
    "a path that escapes": lambda f: f["artifacts"][0].update(path="a/../../b"),
    "an absolute path": lambda f: f["artifacts"][0].update(path="/etc/passwd"),
    "a path with a backslash": lambda f: f["artifacts"][0].update(path="a\\..\\b"),
    "a path with an empty component": lambda f: f["artifacts"][0].update(path="a//b"),
    "the same path twice": lambda f: f["artifacts"].append(f["artifacts"][0]),
    "case twins": lambda f: f["artifacts"].append({**f["artifacts"][0], "path": "MODEL/rank-00000.bin"}),
    "Unicode twins": lambda f: f["artifacts"].append({**f["artifacts"][0], "path": "Gro\u0308ße/重み.json"}),
    "a file that is another's directory": lambda f: f["artifacts"].append({**f["artifacts"][0], "path": "model"}),
    "an unknown component": lambda f: f["artifacts"][0].update(component="weights"),
    "a layout that does not multiply": lambda f: f["job"]["topology"]["layout"].update(data_parallel=3),
    "no ranks": lambda f: f["job"]["topology"].update(world_size=0),
    "an absurd world": lambda f: f["job"]["topology"].update(world_size=10**9),
    "expectations of too few ranks": lambda f: f["expectations"]["ranks"].pop(),
    "expectations in another order": lambda f: f["expectations"]["ranks"].reverse(),
    "a component promised twice": lambda f: f["job"]["promises"].append(f["job"]["promises"][0]),
    "a component present and absent": lambda f: f["job"]["absent"].append({"component": "model", "reason": "x"}),
    "an absence without a reason": lambda f: f["job"]["absent"][0].update(reason=""),
    "a tolerance without a value": lambda f: f["job"]["promises"][1].update(tolerance=None),
    "a tolerance of an exact promise": lambda f: f["job"]["promises"][0].update(tolerance=0.1),
    "a tolerance above one": lambda f: f["job"]["promises"][1].update(tolerance=1.5),
    "less than exact without a reason": lambda f: f["job"]["promises"][2].update(reason=None),
    "an empty field": lambda f: f["job"].update(code=""),
    "a blank field": lambda f: f["job"].update(code="  "),
    "a field that says unknown": lambda f: f["job"]["model"].update(revision="Unknown"),
    "a counter that does not say what it names": lambda f: f["job"]["counters"][0].pop("names"),
    "a counter beyond 63 bits": lambda f: f["job"]["counters"][0].update(value=2**63),
    "a time without a zone": lambda f: f.update(created_at="2026-01-02T03:04:05"),
    "a time that is a number": lambda f: f.update(created_at=1767323045),
    "another step than its name": lambda f: f.update(step=1),
    "another incarnation than its name": lambda f: f.update(incarnation=4),
    "a generation with a newline": lambda f: f.update(generation=f["generation"] + "\n"),
    "a family that is a path": lambda f: f.update(family="a/b"),
    "a key of nobody's": lambda f: f.update(note="hello"),
    "a missing field": lambda f: f.pop("staging"),
    "version zero": lambda f: f.update(format_version=0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unlawful_manifest_is_refused(name: str) -> None:
    """Each of these would let two readers, or a reader and a loader, see different checkpoints."""
    with pytest.raises(FormatError) as caught:
        parse_manifest(changed(REFUSED[name]), "some/key")
    assert "some/key" in caught.value.message or "family name" in caught.value.message or "key" in caught.value.message


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, 10**6])
def test_another_version_is_named_before_anything_else_is_said(version: int) -> None:
    """A newer format's new fields are no damage, and must not be reported as such."""
    with pytest.raises(FormatError) as caught:
        parse_manifest(changed(lambda f: f.update(format_version=version, invented_later={"a": 1})), "some/key")
    assert caught.value.reason is Reason.FORMAT_VERSION_UNSUPPORTED


def test_a_rank_outside_the_world_is_a_question_of_world_size() -> None:
    """Two ranks' files under a world of one is what a wrong world size looks like."""
    with pytest.raises(FormatError) as caught:
        parse_manifest(changed(lambda f: f["artifacts"][0].update(rank=2)), "some/key")
    assert caught.value.reason is Reason.WORLD_SIZE_MISMATCH


@pytest.mark.parametrize(
    "unlawful",
    [
        {"created_at": datetime(2026, 1, 2)},  # noqa: DTZ001 - a time without a zone is the fault
        {"step": 1},
        {"artifacts": ()},
        {"artifacts": (artifact("a\udcff", Component.MODEL, 0),)},
        {"expectations": msgspec.structs.replace(lawful().expectations, learning_rates={"decay": float("nan")})},
    ],
    ids=["time without zone", "other step", "no artifacts", "name that is no text", "NaN"],
)
def test_what_no_reader_would_accept_is_never_written(unlawful: dict[str, Any]) -> None:
    """A publish must fail at once, not its resume."""
    with pytest.raises(FormatError):
        manifest_bytes(msgspec.structs.replace(lawful(), **unlawful))


def test_present_components_count_promises_and_artifacts() -> None:
    """Accumulation and topology live in the configuration file and have no artifact of their own."""
    assert Component.ACCUMULATION in lawful().present
    assert Component.SCALER not in lawful().present


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One to three small damages, of bytes or of JSON tokens."""
    mutant = bytearray(data)
    tokens = [b'"', b"{", b"}", b"[", b"]", b":", b",", b"0", b"-1", b"1e999", b"null", b"true", b"NaN", b"\\ud800"]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(mutant) or 1)
        match chance.randrange(6):
            case 0:
                mutant[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del mutant[at : at + chance.randint(1, 40)]
            case 2:
                mutant[at:at] = chance.choice(tokens)
            case 3:
                del mutant[at:]
            case 4:
                start = chance.randrange(len(mutant) or 1)
                mutant[at:at] = mutant[start : start + chance.randint(1, 200)]
            case 5:
                mutant[at : at + 1] = chance.choice(tokens)
    return bytes(mutant)


def test_no_mutation_of_a_manifest_does_anything_but_be_refused(record_property: Callable[[str, object], None]) -> None:
    """A stranger's manifest is parsed by the process that launches training: no crash, no hang, no leniency."""
    chance = random.Random(20260101)
    data, read = manifest_bytes(lawful()), 0
    slowest = 0.0
    for _ in range(MUTANTS):
        mutant = mutate(data, chance)
        began = time.thread_time()
        try:
            manifest = parse_manifest(mutant, "mutant")
        except FormatError:
            pass
        else:
            # What is still lawful means what it says: written canonically it is read again as the same.
            assert parse_manifest(documents.canonical_bytes(manifest), "again") == manifest
            read += 1
        slowest = max(slowest, time.thread_time() - began)
    record_property("mutants", MUTANTS)
    record_property("mutants that are still lawful", read)
    assert 0 < read < MUTANTS // 4
    assert slowest < 5


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3))


@given(st.data(), values)
def test_any_value_anywhere_in_a_manifest_is_read_or_refused(data: st.DataObject, value: Any) -> None:
    """Whatever JSON another program puts into whatever field, the answer is a manifest or a FormatError."""
    fields = json.loads(manifest_bytes(lawful()))
    place: Any = fields
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = value
        break
    try:
        manifest = parse_manifest(json.dumps(fields).encode(), "mixed")
    except FormatError:
        return
    assert parse_manifest(documents.canonical_bytes(manifest), "again") == manifest


# Seals.


def sealed(**fields: Any) -> Manifest:
    """A manifest as a seal makes it: nothing in it that the checkpoint does not state."""
    published = lawful()
    seal = Seal(
        framework="transformers",
        version="5.24.0",
        layout="safetensors",
        step_from="what the checkpoint holds",
        world_size_from="stated: its arguments",
        listing="blake3:0",
        sealed_at=datetime(2026, 1, 31, tzinfo=UTC),
        by="somebody@somewhere",
    )
    job = msgspec.structs.replace(
        published.job,
        code=None,
        configuration=None,
        model=None,
        tokenizer=None,
        dataset=None,
        environment=Environment(python=None, lastgood="0.1.0"),
    )
    told = {"generation": "00000000-0000000000048000~checkpoint-48000", "incarnation": 0, "job": job, "seal": seal}
    return msgspec.structs.replace(published, **{**told, **fields})


def test_a_seal_may_leave_out_what_the_checkpoint_does_not_state() -> None:
    """And says so by null; it is read back as it was written."""
    assert parse_manifest(manifest_bytes(sealed()), "m") == sealed()
    after_a_rollback = sealed(generation="00000002-0000000000048000~checkpoint-48000", incarnation=2)
    assert parse_manifest(manifest_bytes(after_a_rollback), "m") == after_a_rollback


def test_a_published_manifest_says_nothing_of_seals() -> None:
    """Its bytes are those that every release has written, so every release reads them."""
    assert b"seal" not in manifest_bytes(lawful())


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [
        (lambda: msgspec.structs.replace(lawful(), seal=sealed().seal), "with a seal"),
        (lambda: sealed(seal=None), "without a seal"),
        (lambda: msgspec.structs.replace(lawful(), job=sealed().job), "required field says nothing"),
    ],
    ids=["a published generation", "a name alone", "nothing stated"],
)
def test_only_a_seal_is_excused(spoiled: Callable[[], Manifest], says: str) -> None:
    """A job that publishes knows its code, model and data; one that does not say must not pass for a stranger."""
    with pytest.raises(FormatError, match=says):
        manifest_bytes(spoiled())


def test_a_single_file_lies_in_the_familys_directory() -> None:
    """Its path is its name; a directory of files has one of its own."""
    keys = FamilyKeys("llm-7b")
    name = "epoch=1-step=48000.ckpt"
    single = sealed(
        generation=f"00000000-0000000000048000~{name}",
        artifacts=(artifact(name, Component.MODEL),),
        expectations=None,
    )
    assert (single.is_single_file, single.prefix(keys)) == (True, "llm-7b")
    assert (sealed().is_single_file, sealed().prefix(keys)) == (False, "llm-7b/checkpoint-48000")
    assert (lawful().is_single_file, lawful().prefix(keys)) == (False, "llm-7b/00000003-0000000000048000")
