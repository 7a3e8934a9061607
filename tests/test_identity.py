"""Names: one spelling each, ordered by numbers, and no key that leaves its root."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.errors import FormatError
from lastgood.identity import (
    MAXIMUM_INCARNATION,
    MAXIMUM_STEP,
    FamilyKeys,
    GenerationId,
    check_family_name,
    check_key,
)

steps = st.integers(0, MAXIMUM_STEP)
own = st.builds(GenerationId, incarnation=st.integers(1, MAXIMUM_INCARNATION), step=steps)
foreign = st.builds(
    GenerationId,
    incarnation=st.just(0),
    step=steps,
    name=st.text(string.ascii_letters + "-_é", min_size=1, max_size=20),
)
generations = own | foreign


@given(generations)
def test_a_generation_is_read_back_from_its_one_spelling(generation: GenerationId) -> None:
    """What is written as a name must come back as the same value."""
    assert GenerationId.parse(str(generation)) == generation


@given(generations, generations)
def test_generations_order_by_numbers_incarnation_first(one: GenerationId, other: GenerationId) -> None:
    """A later life is newer whatever its step, and no clock or text decides."""
    key = (one.incarnation, one.step, one.name)
    assert (one < other) == (key < (other.incarnation, other.step, other.name))


@given(own, own)
def test_names_of_ours_sort_like_their_values(one: GenerationId, other: GenerationId) -> None:
    """People and shells that sort by text see the order that lastgood sees."""
    assert (one < other) == (str(one) < str(other))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-2",
        "00000001-0000000000000002\n",
        " 00000001-0000000000000002",
        "00000001_0000000000000002",
        "000000001-0000000000000002",
        "00000001-00000000000000002",
        "0000000١-0000000000000002",
        "-0000001-0000000000000002",
        "00000000-0000000000000002",
        "00000000-0000000000000002~",
        "00000001-0000000000000002~",
        "00000000-0000000000000002~../x",
        "00000000-0000000000000002~a\nb",
    ],
)
def test_any_other_spelling_of_a_generation_is_refused(text: str) -> None:
    """Two spellings of one name would be two checkpoints to a store and one to a reader."""
    with pytest.raises(FormatError):
        GenerationId.parse(text)


@pytest.mark.parametrize(
    ("incarnation", "step"), [(-1, 0), (1, -1), (MAXIMUM_INCARNATION + 1, 0), (1, MAXIMUM_STEP + 1)]
)
def test_numbers_that_do_not_fit_the_spelling_are_refused(incarnation: int, step: int) -> None:
    """A number with one digit more would sort before its predecessor."""
    with pytest.raises(FormatError):
        GenerationId(incarnation, step)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "a/..",
        "a/../b",
        "./a",
        "a/.",
        "a//b",
        "a/",
        "a\\b",
        "a\x00b",
        "a\nb",
        "a\x7fb",
        "a\ud800b",
        "x" * 1025,
        "é" * 513,
    ],
)
def test_a_key_that_could_leave_its_root_is_refused(key: str) -> None:
    """Paths in manifests come from strangers, and each system reads odd ones differently."""
    with pytest.raises(FormatError):
        check_key(key)


@pytest.mark.parametrize("key", ["a", "a/b", ".hidden", "a/..b", "...", "Größe/重み/rank-0.bin", "a b", "é" * 512])
def test_ordinary_keys_are_let_through_unchanged(key: str) -> None:
    """Unicode, spaces and dots are everyday names."""
    assert check_key(key) == key


@given(st.text())
def test_no_text_breaks_the_check(key: str) -> None:
    """Any text is either a lawful key or a FormatError, and a lawful one has only plain components."""
    try:
        check_key(key)
    except FormatError:
        return
    assert all(part not in ("", ".", "..") for part in key.split("/"))
    assert key.isprintable() or all(ord(character) >= 32 for character in key)


@pytest.mark.parametrize("name", [".lastgood", "a/b", "", "..", "x" * 201, "a\n"])
def test_a_family_is_one_visible_component(name: str) -> None:
    """A hidden family would hide among our own documents, and a deeper one would be another's generation."""
    with pytest.raises(FormatError):
        check_family_name(name)


def test_every_key_of_a_family_lies_where_the_protocol_says() -> None:
    """Other programs find our documents by these places."""
    keys, generation = FamilyKeys("llm-7b"), GenerationId(3, 48_000)
    assert keys.claim(3) == "llm-7b/.lastgood/incarnations/00000003"
    assert keys.resume(3) == "llm-7b/.lastgood/incarnations/00000003.resume"
    assert keys.active(3) == "llm-7b/.lastgood/incarnations/00000003.active"
    assert keys.manifest(generation) == "llm-7b/.lastgood/manifests/00000003-0000000000048000.json"
    assert keys.commit(generation) == "llm-7b/.lastgood/commits/00000003-0000000000048000"
    assert keys.artifacts(generation) == "llm-7b/00000003-0000000000048000"
    assert keys.artifacts(GenerationId(0, 500, "checkpoint-500")) == "llm-7b/checkpoint-500"
    assert (keys.last_good, keys.quarantine) == ("llm-7b/.lastgood/LAST_GOOD", "llm-7b/.lastgood/QUARANTINE")


def test_a_staging_names_the_generation_that_it_was_to_become() -> None:
    """Whoever counts or removes what dead publishes left must not take a stranger's directory for one of them."""
    generation = GenerationId(3, 48000)
    assert GenerationId.of_staging(f"{generation}~0123abcd") == generation
    for name in (str(generation), f"{generation}~0123ABCD", f"{generation}~0123abcde", "x~0123abcd", ""):
        assert GenerationId.of_staging(name) is None
    assert GenerationId.find(str(generation)) == generation
    assert GenerationId.find("checkpoint-500") is None
