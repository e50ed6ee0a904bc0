"""The contents of a simulated place: versions under their names, with the bytes that they really have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["DAMAGED", "ZEROS", "Copy", "Stored"]

DAMAGED = "damaged"
"""Bytes that belong to no version."""
ZEROS = "zeros"
"""The rows of a reader that got none."""


@dataclass(frozen=True)
class Copy:
    """A version at a place."""

    pin: str
    """The name it was loaded under."""
    bytes: str
    """The pin whose bytes it has: its own if all went well; another, or `v1+v2` after a delta on a wrong base."""
    sent: str = ""
    """The bytes that the releasing machine sent, which the place compares them with; empty: those of its name."""
    is_ready: bool = True
    shards: Mapping[str, int] = field(default_factory=dict)
    """Dense: the layout whose rows it reads."""

    @property
    def is_sound(self) -> bool:
        """True if its bytes are those of its name."""
        return self.bytes == self.pin

    @property
    def is_as_sent(self) -> bool:
        """True if its bytes are those that were sent, which is all that a place can tell."""
        return self.bytes == (self.sent or self.pin)


@dataclass
class Stored:
    """The disk of a place."""

    copies: dict[str, Copy] = field(default_factory=dict)
    active: dict[str, float] = field(default_factory=dict)
    fence: int = 0

    def copy(self) -> Stored:
        """Return a copy."""
        return Stored(dict(self.copies), dict(self.active), self.fence)

    def spoil(self, pin: str, content: str) -> None:
        """Replace the bytes of a version."""
        self.copies[pin] = replace(self.copies[pin], bytes=content)

    def keep_sound(self) -> bool:
        """Drop what cannot be read back as it was written, as a server does when it starts.

        Returns:
            Whether everything is still there.
        """
        kept = {pin: copy for pin, copy in self.copies.items() if copy.is_ready and copy.is_as_sent}
        is_whole = all(pin in kept for pin in self.active)
        self.copies = kept
        if not is_whole:
            self.active = {}
        return is_whole
