"""Writing an object so that no field of it is dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudedge.errors import InputError
from cloudedge.kube._fields import dropped
from cloudedge.kube._kinds import Kind, Object
from cloudedge.kube._session import Session

__all__ = ["APPLY", "MERGE", "Write"]

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

_NO_PRETENDING = "does not support dry run"


@dataclass(frozen=True)
class Write:
    """A request that changes an object."""

    method: str
    path: str
    kind: Kind
    body: Mapping[str, Any]
    what: str
    """In words, for errors."""
    query: Mapping[str, str]
    content_type: str = "application/json"
    repeat: bool = True
    """Whether sending it twice does no harm."""

    def send(self, session: Session, *, dry_run: bool, is_strict: bool) -> Object:
        """Send it, and return the object as it is then.

        Args:
            session: The server.
            dry_run: Let the server check it and change nothing.
            is_strict: Whether the server itself refuses fields that it does not know, as from 1.25 on. Others are
                asked to pretend first, and what would come back is compared with what was sent.

        Raises:
            InputError: a field would be dropped; nothing was written, unless the message says so.
        """
        if is_strict:
            return self._send(session, pretend=dry_run)
        try:
            pretended = self._send(session, pretend=True)
        except InputError as error:
            if dry_run or _NO_PRETENDING not in error.message:
                raise
            # A webhook in between cannot pretend; then the loss is found out afterwards, which is better than never.
            written = self._send(session, pretend=False)
            self._refuse_loss(written, "has dropped it silently; the rest is written")
            return written
        self._refuse_loss(pretended, "would drop it silently")
        return pretended if dry_run else self._send(session, pretend=False)

    def _refuse_loss(self, found: Object, consequence: str) -> None:
        lost = dropped(self.body, found, is_custom=self.kind.is_custom)
        if lost:
            raise InputError(
                f"{self.what}: the cluster's {self.kind} does not know {', '.join(lost)} and {consequence}",
                hint="Check the spelling, and whether this cluster's version of the kind has the field.",
                fields=lost,
            )

    def _send(self, session: Session, *, pretend: bool) -> Object:
        found: Object = session.call(
            self.method,
            self.path,
            what=self.what,
            query={**self.query, "fieldValidation": "Strict"} | ({"dryRun": "All"} if pretend else {}),
            body=self.body,
            content_type=self.content_type,
            repeat=self.repeat or pretend,
        )
        return found
