"""The desired state of a replica as a document: the versions to load and their shares of the requests."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cloudedge.errors import InputError

__all__ = ["Desired", "DesiredVersion"]


class DesiredVersion(BaseModel):
    """A version to load."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pin: str
    bundle: str
    """Name and digest."""
    tables: Mapping[str, str] = {}
    """The names of its tables in cube.conf."""
    rows: Mapping[str, tuple[str, int]] = {}
    """Type and length of a row of each table: the tables themselves are not pulled."""


class Desired(BaseModel):
    """The desired state of a replica."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    order: int = Field(0, ge=0)
    """Only grows; of two documents the one with the higher order counts."""
    versions: tuple[DesiredVersion, ...] = ()
    shares: Mapping[str, float] = {}
    """The share of requests by pin; empty: no version answers."""
    cube: str = ""
    """A cube.conf; empty: rows come from the bundles."""

    @classmethod
    def parse(cls, text: str | bytes) -> Desired:
        """Parse a document.

        Raises:
            InputError: The text is no such document.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            found = error.errors()[0]
            where = ".".join(str(step) for step in found["loc"])
            raise InputError(f"not a document of the desired state: {where}: {found['msg']}") from error
