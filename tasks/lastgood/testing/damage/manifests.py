"""Manifests: deleted, torn, unlawful in each way a strict parser must see, of another version, generation or family."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec

from lastgood.identity import FamilyKeys
from lastgood.reasons import Reason
from lastgood.testing.damage.catalogue import enter
from lastgood.testing.damage.scene import Scene

__all__: list[str] = []


def _rewrite(scene: Scene, change: Callable[[dict[str, Any]], None]) -> str:
    """Sign the manifest after a change that no program of ours could make, as canonically as it can be spelled."""
    fields = json.loads(scene.manifest_path.read_bytes())
    change(fields)
    scene.sign(msgspec.json.encode(fields) + b"\n")
    return scene.keys.manifest(scene.generation)


@enter(Reason.MANIFEST_MISSING)
def manifest_deleted(scene: Scene) -> str:
    """The artifacts were copied, the manifest was not."""
    scene.manifest_path.unlink()
    return scene.keys.manifest(scene.generation)


@enter(Reason.MANIFEST_MALFORMED)
def manifest_emptied(scene: Scene) -> str:
    """A file system that flushed the name before the bytes left a manifest of 0 bytes."""
    scene.manifest_path.write_bytes(b"")
    return scene.keys.manifest(scene.generation)


@enter(Reason.MANIFEST_MALFORMED)
def manifest_torn(scene: Scene) -> str:
    """Half of the manifest reached the disk."""
    data = scene.manifest_path.read_bytes()
    scene.manifest_path.write_bytes(data[: len(data) // 2])
    return scene.keys.manifest(scene.generation)


@enter(Reason.MANIFEST_MALFORMED)
def manifest_has_a_duplicate_key(scene: Scene) -> str:
    """Two steps in one manifest: of ordinary parsers some would take the first, some the last."""
    data = scene.manifest_path.read_bytes()
    scene.sign(data.replace(b'"step":', b'"step":1,"step":', 1))
    return scene.keys.manifest(scene.generation)


@enter(Reason.MANIFEST_MALFORMED)
def manifest_has_an_unknown_key(scene: Scene) -> str:
    """A key that this version does not know may mean anything, so it is not skipped."""
    return _rewrite(scene, lambda fields: fields.update(skip_verification=True))


@enter(Reason.MANIFEST_MALFORMED)
def manifest_lacks_a_field(scene: Scene) -> str:
    """The description of the job is gone."""
    return _rewrite(scene, lambda fields: fields.pop("job"))


@enter(Reason.MANIFEST_MALFORMED)
def manifest_holds_nan(scene: Scene) -> str:
    """An expectation that is not a number compares equal to nothing."""
    data = scene.manifest_path.read_bytes()
    scene.sign(data.replace(b'"scale":65536.0', b'"scale":NaN', 1))
    return scene.keys.manifest(scene.generation)


@enter(Reason.MANIFEST_MALFORMED)
def manifest_begins_with_a_byte_order_mark(scene: Scene) -> str:
    """An editor saved it again."""
    scene.sign(b"\xef\xbb\xbf" + scene.manifest_path.read_bytes())
    return scene.keys.manifest(scene.generation)


@enter(Reason.MANIFEST_MALFORMED)
def manifest_says_unknown(scene: Scene) -> str:
    """A required field that says that nobody knows passes for knowledge."""
    return _rewrite(scene, lambda fields: fields["job"].update(code="unknown"))


@enter(Reason.MANIFEST_MALFORMED)
def manifest_path_escapes(scene: Scene) -> str:
    """An artifact's path leads out of the generation."""
    return _rewrite(scene, lambda fields: fields["artifacts"][0].update(path="../../../etc/passwd"))


@enter(Reason.MANIFEST_MALFORMED)
def manifest_path_is_absolute(scene: Scene) -> str:
    """An artifact's path begins at the machine's root."""
    return _rewrite(scene, lambda fields: fields["artifacts"][0].update(path="/etc/passwd"))


@enter(Reason.MANIFEST_MALFORMED)
def manifest_has_case_twins(scene: Scene) -> str:
    """Two paths that a file system which folds case would merge into one file."""
    return _rewrite(
        scene, lambda f: f["artifacts"].append({**f["artifacts"][0], "path": f["artifacts"][0]["path"].upper()})
    )


@enter(Reason.MANIFEST_MALFORMED)
def manifest_has_unicode_twins(scene: Scene) -> str:
    """Two paths that look alike and that a file system which normalises Unicode would merge into one file."""

    def twin(fields: dict[str, Any]) -> None:
        for form in ("NFC", "NFD"):
            fields["artifacts"].append({**fields["artifacts"][0], "path": unicodedata.normalize(form, "modèle.bin")})

    return _rewrite(scene, twin)


@enter(Reason.MANIFEST_MALFORMED)
def manifest_contradicts_itself(scene: Scene) -> str:
    """The step in the manifest is not the step in the generation's name."""
    return _rewrite(scene, lambda fields: fields.update(step=fields["step"] + 1))


@enter(Reason.MANIFEST_MALFORMED)
def manifest_has_a_negative_size(scene: Scene) -> str:
    """A length that no file can have."""
    return _rewrite(scene, lambda fields: fields["artifacts"][0].update(bytes=-1))


@enter(Reason.FORMAT_VERSION_UNSUPPORTED)
def format_version_newer(scene: Scene) -> str:
    """A newer lastgood wrote it, with fields that this one does not know."""
    return _rewrite(
        scene, lambda fields: fields.update(format_version=fields["format_version"] + 1, compression="zstd")
    )


@enter(Reason.COMMIT_MISMATCH)
def manifest_edited(scene: Scene) -> str:
    """Somebody corrected the manifest after the commit; it is lawful, and not what was committed."""
    data = scene.manifest_path.read_bytes()
    scene.manifest_path.write_bytes(data.replace(b'"strategy":"built"', b'"strategy":"fsdp2"'))
    return scene.keys.manifest(scene.generation)


@enter(Reason.GENERATION_MISMATCH)
def manifest_of_another_generation(scene: Scene) -> str:
    """The manifest of the generation before was copied over this one's."""
    scene.manifest_path.write_bytes(scene.path(scene.keys.manifest(scene.older())).read_bytes())
    return scene.keys.manifest(scene.generation)


@enter(Reason.FAMILY_MISMATCH)
def manifest_of_another_family(scene: Scene) -> str:
    """The same step of another family was copied here, manifest and marker alike."""
    stranger = FamilyKeys(scene.stranger)
    scene.sign(scene.path(stranger.manifest(scene.generation)).read_bytes())
    return scene.keys.manifest(scene.generation)
