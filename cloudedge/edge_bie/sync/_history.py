"""The history of applied states, in a journal on this machine, since BIE keeps none.

A state is kept as resolved documents: texts and digests in full, secrets by name only. The journal's lock admits one
writer on this machine at a time; nothing keeps two machines apart, so let only one of them write.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudedge.clock import Clock
from cloudedge.edge_bie.client import Registry
from cloudedge.edge_bie.sync._sync_documents import read_documents
from cloudedge.edge_bie.sync._sync_plan import SyncPlan, SyncStep
from cloudedge.errors import NotFound
from cloudedge.io import who
from cloudedge.journal import Journal, Operation, Writer

__all__ = ["AppliedState", "Attempt", "History"]

_KIND = "bie-apply"
_SCRYPT = {"n": 1 << 14, "r": 8, "p": 1}


@dataclass(frozen=True)
class AppliedState:
    """A desired state that was applied."""

    number: int
    set: str
    at: str
    by: str
    state: str
    steps: int
    documents: tuple[Any, ...]


class Attempt:
    """An apply in progress."""

    def __init__(self, writer: Writer, number: int) -> None:
        self._writer = writer
        self.number = number

    @contextmanager
    def step(self, step: SyncStep) -> Iterator[None]:
        """Record a step before and after it is made."""
        name = f"{step.verb} {step.kind}/{step.name}"
        self._writer.record(self.number, name, "intent")
        try:
            yield
        except BaseException as error:
            self._writer.record(self.number, name, "failed", error=type(error).__name__)
            raise
        self._writer.record(self.number, name, "done")

    def applied_password(self, registry: Registry) -> None:
        """Record a registry's password as a salted hash."""
        salt = secrets.token_bytes(16)
        self._writer.remember(
            f"password/{registry.name}", {"salt": salt.hex(), "scrypt": _scrypt(registry.password, salt)}
        )


class History:
    """The states that were applied to one control plane."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._journal = Journal(folder / "history.db", clock=clock)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def states(self, named: str) -> list[AppliedState]:
        """List the applied and attempted states of a set, newest first."""
        return [_applied_state(each) for each in self._journal.operations(kind=_KIND) if each.subject == named]

    def last(self, named: str) -> AppliedState | None:
        """Return the last state that was applied completely."""
        return next((state for state in self.states(named) if state.state == "done"), None)

    def other_than(self, named: str, documents: tuple[Any, ...]) -> AppliedState | None:
        """Return the newest completely applied state with other documents."""
        return next((s for s in self.states(named) if s.state == "done" and s.documents != documents), None)

    def before(self, named: str, number: int | None = None) -> AppliedState:
        """Return the state to roll back to: the one with the number, or the one before the last.

        Raises:
            NotFound: there is none.
        """
        last = self.last(named)
        if number is not None:
            found = next((s for s in self.states(named) if (s.number, s.state) == (number, "done")), None)
        else:
            found = self.other_than(named, last.documents) if last else None
        if found is None:
            raise NotFound(
                f"set {named} has no {'previous state' if number is None else f'applied state {number}'}",
                hint="List the states applied from this machine with `cloudedge bie history`.",
            )
        return found

    def knows_password(self, registry: Registry) -> bool | None:
        """Return True if a registry's password is the one applied last; None: none was applied."""
        known = self._journal.recall(f"password/{registry.name}")
        if known is None:
            return None
        return secrets.compare_digest(known["scrypt"], _scrypt(registry.password, bytes.fromhex(known["salt"])))

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Hold the write access.

        Raises:
            Conflict: another process on this machine holds it.
        """
        with self._journal.writing(who()) as writer:
            left = self._journal.unfinished()
            if left is not None:  # killed half-way; the next plan continues from there
                writer.set_state(left.number, "failed", why="interrupted")
            yield writer

    @contextmanager
    def applying(self, writer: Writer, plan: SyncPlan, documents: tuple[Any, ...]) -> Iterator[Attempt]:
        """Record a plan before the block carries it out, and the outcome after."""
        what = {
            "documents": [each.model_dump(mode="json") for each in documents],
            "steps": [asdict(step) for step in plan.steps],
        }
        operation = writer.begin(_KIND, plan.set, plan=what, by=who())
        try:
            yield Attempt(writer, operation.number)
        except BaseException as error:
            writer.set_state(operation.number, "failed", why=type(error).__name__)
            raise
        writer.set_state(operation.number, "done")


def _applied_state(operation: Operation) -> AppliedState:
    plan: Mapping[str, Any] = operation.plan
    return AppliedState(
        number=operation.number,
        set=operation.subject,
        at=operation.begun_at,
        by=operation.by,
        state=operation.state,
        steps=len(plan["steps"]),
        documents=tuple(read_documents(plan["documents"], f"state {operation.number}")),
    )


def _scrypt(password: str, salt: bytes) -> str:
    return hashlib.scrypt(password.encode(), salt=salt, dklen=32, **_SCRYPT).hex()
