"""Findings: errors, warnings and notes about an object's description, each with its path in the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from cloudedge.errors import InputError

__all__ = ["Finding", "Severity", "error", "note", "refuse_errors", "warning"]

Severity = Literal["error", "warning", "note"]
"""An error stops the submission, a warning predicts a consequence, a note explains how cloudedge handles something."""


@dataclass(frozen=True)
class Finding:
    """One error, warning or note about an object's description."""

    severity: Severity
    rule: str
    """A short name, stable for one kind of finding: ``name-length``."""
    where: str
    """The path in the manifest: ``spec.worker.replicas``."""
    message: str
    """The fact and its consequence."""
    hint: str = ""
    """The correction."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f" {self.hint}" if self.hint else "")

    def to_json(self) -> dict[str, Any]:
        """Return the finding for programs, without its empty fields."""
        return {key: value for key, value in vars(self).items() if value}


def error(rule: str, where: str, message: str, hint: str = "") -> Finding:
    """Make a finding that stops the submission."""
    return Finding("error", rule, where, message, hint)


def warning(rule: str, where: str, message: str, hint: str = "") -> Finding:
    """Make a finding that predicts a consequence."""
    return Finding("warning", rule, where, message, hint)


def note(rule: str, where: str, message: str, hint: str = "") -> Finding:
    """Make a finding that explains how cloudedge handles something."""
    return Finding("note", rule, where, message, hint)


def refuse_errors(what: str, findings: Iterable[Finding]) -> None:
    """Raise if any finding is an error.

    Raises:
        InputError: its message and its `findings` hold all of them.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        lines = "\n".join(f"  {finding}" for finding in errors)
        raise InputError(f"{what} cannot work:\n{lines}", findings=[finding.to_json() for finding in errors])
