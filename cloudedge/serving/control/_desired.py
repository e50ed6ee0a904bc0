"""What a replica shall have loaded and answer with, as a document."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cloudedge.errors import InputError

__all__ = ["Desired", "DesiredVersion"]


class DesiredVersion(BaseModel):
    """A version that shall be loaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pin: str
    bundle: str
    """Name and digest."""
    tables: Mapping[str, str] = {}
    """What cube.conf calls its tables."""
    rows: Mapping[str, tuple[str, int]] = {}
    """Type and length of a row of each table: the tables themselves are not pulled."""


class Desired(BaseModel):
    """What a replica shall have loaded and answer with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    order: int = Field(0, ge=0)
    """Only grows; of two documents the one with the higher order counts."""
    versions: tuple[DesiredVersion, ...] = ()
    shares: Mapping[str, float] = {}
    """Pins with the share of requests each answers; none: nothing answers."""
    cube: str = ""
    """A cube.conf; empty: rows come from the bundles."""

    @classmethod
    def parse(cls, text: str | bytes) -> Desired:
        """Read a document.

        Raises:
            InputError: it is none.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            found = error.errors()[0]
            where = ".".join(str(step) for step in found["loc"])
            raise InputError(f"this does not say what to serve: {where}: {found['msg']}") from error
