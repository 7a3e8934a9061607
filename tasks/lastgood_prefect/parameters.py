"""The kinds of parameters that flows take: they check a request before a run begins, and make the UI's form."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from lastgood.errors import FormatError
from lastgood.identity import MAXIMUM_NAME_BYTES, GenerationId, check_family_name

__all__ = ["FamilyName", "GenerationName"]


def _family(name: str) -> str:
    try:
        return check_family_name(name)
    except FormatError as error:
        raise ValueError(error.message) from None


def _generation(name: str) -> str:
    try:
        return str(GenerationId.parse(name))
    except FormatError as error:
        raise ValueError(error.message) from None


FamilyName = Annotated[
    str,
    Field(min_length=1, max_length=MAXIMUM_NAME_BYTES, examples=["llm-7b"]),
    AfterValidator(_family),
]
"""A family by its name in lastgood.toml."""

GenerationName = Annotated[
    str,
    Field(pattern=r"^\d{8}-\d{16}(~.+)?$", examples=["00000003-0000000000048000"]),
    AfterValidator(_generation),
]
"""A generation, `<incarnation: 8 digits>-<step: 16 digits>`, of a sealed one with `~<name>`."""
