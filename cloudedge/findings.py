"""What is wrong, doubtful or worth knowing about an object's description, and where in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from cloudedge.errors import InputError

__all__ = ["Finding", "Severity", "error", "note", "refuse_errors", "warning"]

Severity = Literal["error", "warning", "note"]
"""An error stops it from being sent; a warning says what to expect; a note says what cloudedge does about it."""


@dataclass(frozen=True)
class Finding:
    """One thing about an object's description."""

    severity: Severity
    rule: str
    """A short name, the same for the same kind of thing: ``name-length``."""
    where: str
    """The path in the manifest: ``spec.worker.replicas``."""
    message: str
    """What is so, and what it would lead to."""
    hint: str = ""
    """What to write instead."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f" {self.hint}" if self.hint else "")

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {key: value for key, value in vars(self).items() if value}


def error(rule: str, where: str, message: str, hint: str = "") -> Finding:
    """Make a finding that stops it."""
    return Finding("error", rule, where, message, hint)


def warning(rule: str, where: str, message: str, hint: str = "") -> Finding:
    """Make a finding that says what to expect."""
    return Finding("warning", rule, where, message, hint)


def note(rule: str, where: str, message: str, hint: str = "") -> Finding:
    """Make a finding that says what cloudedge does about something."""
    return Finding("note", rule, where, message, hint)


def refuse_errors(what: str, findings: Iterable[Finding]) -> None:
    """Do nothing unless one of the findings is an error.

    Raises:
        InputError: with all of them in its message, and as `findings`.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        lines = "\n".join(f"  {finding}" for finding in errors)
        raise InputError(f"{what} cannot work:\n{lines}", findings=[finding.to_json() for finding in errors])
