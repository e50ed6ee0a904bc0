"""Writes that never drop a field of an object silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudedge.errors import InputError
from cloudedge.kube.api._session import Session
from cloudedge.kube.objects import Kind, Object, dropped

__all__ = ["APPLY", "MERGE", "Write"]

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

_NO_DRY_RUN = "does not support dry run"


@dataclass(frozen=True)
class Write:
    """A request that changes an object."""

    method: str
    path: str
    kind: Kind
    body: Mapping[str, Any]
    what: str
    """The attempt in words, for errors."""
    query: Mapping[str, str]
    content_type: str = "application/json"
    repeat: bool = True
    """True if sending it twice does no harm."""

    def send(self, session: Session, *, dry_run: bool, is_strict: bool) -> Object:
        """Send the write, and return the resulting object.

        Args:
            session: The server.
            dry_run: Let the server validate it and change nothing.
            is_strict: Whether the server itself refuses unknown fields, as from 1.25 on. Others get a dry run first,
                whose answer is compared with the request.

        Raises:
            InputError: a field would be dropped; nothing was written, unless the message says so.
        """
        if is_strict:
            return self._send(session, dry_run=dry_run)
        try:
            rehearsed = self._send(session, dry_run=True)
        except InputError as error:
            if dry_run or _NO_DRY_RUN not in error.message:
                raise
            # A webhook in between supports no dry run. The loss is then found after the write: better than never.
            written = self._send(session, dry_run=False)
            self._refuse_loss(written, "has dropped it silently; the rest is written")
            return written
        self._refuse_loss(rehearsed, "would drop it silently")
        return rehearsed if dry_run else self._send(session, dry_run=False)

    def _refuse_loss(self, found: Object, consequence: str) -> None:
        lost = dropped(self.body, found, is_custom=self.kind.is_custom)
        if lost:
            raise InputError(
                f"{self.what}: the cluster's {self.kind} has no field {', '.join(lost)} and {consequence}",
                hint="Check the spelling, and whether this cluster's version of the kind has the field.",
                fields=lost,
            )

    def _send(self, session: Session, *, dry_run: bool) -> Object:
        found: Object = session.call(
            self.method,
            self.path,
            what=self.what,
            query={**self.query, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {}),
            body=self.body,
            content_type=self.content_type,
            repeat=self.repeat or dry_run,
        )
        return found
