"""What a simulated place has: versions under their names, and whose bytes they really are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["DAMAGED", "ZEROS", "Copy", "Stored"]

DAMAGED = "damaged"
"""Bytes that are no version's."""
ZEROS = "zeros"
"""What a reader has that got no rows at all."""


@dataclass(frozen=True)
class Copy:
    """A version at a place."""

    pin: str
    """The name it was loaded under."""
    bytes: str
    """Whose bytes it has: the same pin, if all went well; another one's, or `v1+v2` if a delta went on a wrong base."""
    is_ready: bool = True
    shards: Mapping[str, int] = field(default_factory=dict)
    """Dense: the layout whose rows it reads."""

    @property
    def is_sound(self) -> bool:
        """Whether its bytes are those that its name promises."""
        return self.bytes == self.pin


@dataclass
class Stored:
    """What a place has on its disk."""

    copies: dict[str, Copy] = field(default_factory=dict)
    active: dict[str, float] = field(default_factory=dict)
    fence: int = 0

    def copy(self) -> Stored:
        """Return another one with the same."""
        return Stored(dict(self.copies), dict(self.active), self.fence)

    def spoil(self, pin: str, content: str) -> None:
        """Put other bytes where a version's were."""
        self.copies[pin] = replace(self.copies[pin], bytes=content)

    def keep_sound(self) -> bool:
        """Let go of what cannot be read back as it was written, as a server does when it starts.

        Returns:
            Whether everything is still there.
        """
        kept = {pin: copy for pin, copy in self.copies.items() if copy.is_ready and copy.is_sound}
        is_whole = all(pin in kept for pin in self.active)
        self.copies = kept
        if not is_whole:
            self.active = {}
        return is_whole
