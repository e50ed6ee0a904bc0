"""The exceptions cloudedge raises: one tree, in which each class says whether a retry can help.

    CloudEdgeError
      ConfigError           cloudedge.yaml or an option is wrong: change it
      InputError            a file, table or name handed in cannot be used: change it
        SignatureInvalid    signed by another key, or not signed: find out where it came from
      NotFound              no such bundle, tag, blob or hub
      Conflict              another process moved it or owns it, or it exists and may not change
      IntegrityError        bytes are not what their digest says: fetch or pack again
      Rejected              the other side refused (credentials, permission, quota): ask its owner
      StorageError          this disk or bucket cannot be written: full, read-only, gone
      Unavailable           the other side did not answer properly: a retry helps           [retry]
        Overloaded          the other side has too much to do: try again later             [retry]
        DeadlineExceeded    the time limit passed: nothing was begun                       [retry]
      Interrupted           part of the work is done and kept: run the same command again  [retry]

A message states what was attempted, on what, and what came back. ``hint`` states the next step, as full sentences
with the command in backticks. The facts a program needs (``digest``, ``path``, ``hub``...) are attributes and survive
pickling.
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
        message: The attempt, its object, and the answer.
        hint: The next step: full sentences, with any command in backticks.
        facts: Values for programs, kept in ``facts`` and readable as attributes.
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
    """cloudedge.yaml or an option is wrong. Nothing was attempted."""


class InputError(CloudEdgeError):
    """A file, a table or a name that was handed in cannot be used."""


class SignatureInvalid(InputError):
    """No signature made with the given key covers this bundle."""


class NotFound(CloudEdgeError):
    """The named bundle, tag, blob or hub does not exist."""


class Conflict(CloudEdgeError):
    """Another process moved it first, or it exists and may not change."""


class IntegrityError(CloudEdgeError):
    """Bytes are not what their digest or declared size says."""


class Rejected(CloudEdgeError):
    """The other side understood the request and refused it."""


class StorageError(CloudEdgeError):
    """The place to write to is full, read-only or gone."""


class Unavailable(CloudEdgeError):
    """The other side could not be reached or did not answer properly."""

    retry_helps = True


class Overloaded(Unavailable):
    """The other side has too much to do. Nothing was begun."""


class DeadlineExceeded(Unavailable):
    """The caller's time limit passed. Nothing was begun."""


class Interrupted(CloudEdgeError):
    """Part of the work is done and kept. The same command continues where this one stopped."""

    retry_helps = True
    exit_code = 3
