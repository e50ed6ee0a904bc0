"""Everything cloudedge raises on purpose: one tree, and each class says whether trying again can help.

    CloudEdgeError
      ConfigError           cloudedge.yaml or an option is wrong: change it
      InputError            a file, table or name handed in cannot be used: change it
        SignatureInvalid    signed by another key, or not signed: find out who made it
      NotFound              no such bundle, tag, blob or hub
      Conflict              someone else moved it, owns it, or it exists already and may not change
      IntegrityError        bytes are not what their digest says: fetch or pack again
      Rejected              the other side said no (credentials, permission, quota): ask its owner
      StorageError          this disk or bucket cannot be written: full, read-only, gone
      Unavailable           the other side did not answer properly: trying again helps     [retry]
        Overloaded          it has more to do than it can: try again later                  [retry]
        DeadlineExceeded    the time that was given is over: nothing was begun              [retry]
      Interrupted           part of the work is done and kept: run the same command again  [retry]

A message says what was attempted, on what and what came back; ``hint`` says what to do next; the facts a
program would need (``digest``, ``path``, ``hub``...) are attributes and survive pickling.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "CloudEdgeError",
    "ConfigError",
    "Conflict",
    "DeadlineExceeded",
    "InputError",
    "IntegrityError",
    "Interrupted",
    "NotFound",
    "Overloaded",
    "Rejected",
    "SignatureInvalid",
    "StorageError",
    "Unavailable",
]


class CloudEdgeError(Exception):
    """Base of every error cloudedge raises on purpose.

    Args:
        message: What was attempted, on what, and what came back.
        hint: What to do next, as a sentence or a command.
        facts: What a program would want to know, kept in ``facts`` and readable as attributes.
    """

    retry_helps: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts
        self.was_repeated = False
        """Whether the layer below repeated what failed as long as that made sense; the caller then does not."""

    def __getattr__(self, name: str) -> Any:
        """Read a fact as an attribute."""
        try:
            return self.__dict__["facts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep message, hint and facts across a process boundary."""
        return _rebuild, (type(self), self.message, self.hint, self.facts)


def _rebuild(cls: type[CloudEdgeError], message: str, hint: str, facts: dict[str, Any]) -> CloudEdgeError:
    return cls(message, hint=hint, **facts)


class ConfigError(CloudEdgeError):
    """cloudedge.yaml or an option is wrong; nothing was attempted."""


class InputError(CloudEdgeError):
    """A file, a table or a name that was handed in cannot be used."""


class SignatureInvalid(InputError):
    """No signature made with the given key covers this bundle."""


class NotFound(CloudEdgeError):
    """The named bundle, tag, blob or hub is not there."""


class Conflict(CloudEdgeError):
    """Someone else moved it first, or it exists and may not change."""


class IntegrityError(CloudEdgeError):
    """Bytes are not what their digest or declared size says."""


class Rejected(CloudEdgeError):
    """The other side understood and said no."""


class StorageError(CloudEdgeError):
    """The place to write to is full, read-only or gone."""


class Unavailable(CloudEdgeError):
    """The other side could not be reached or did not answer properly."""

    retry_helps = True


class Overloaded(Unavailable):
    """The other side has more to do than it can; nothing was begun."""


class DeadlineExceeded(Unavailable):
    """The time the caller gave is over; nothing was begun."""


class Interrupted(CloudEdgeError):
    """Part of the work is done and kept; the same command continues where this one stopped."""

    retry_helps = True
    exit_code = 3
