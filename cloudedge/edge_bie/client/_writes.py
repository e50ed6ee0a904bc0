"""Safe writes to a control plane that checks little, loses some writes and has no transactions.

Every write is read back and compared. A create is repeated only after checking that the object does not exist. Two
writes to one config are at least a second apart, because versions begin with the second and propagate by comparison
as text.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cloudedge.clock import Clock, rfc3339
from cloudedge.edge_bie.client._audit import Audit, Write
from cloudedge.edge_bie.client._http import Transport, new_request_id
from cloudedge.edge_bie.client._masking import body_digest
from cloudedge.errors import CloudEdgeError, Conflict, InputError, Unavailable
from cloudedge.io import Backoff, Patience, who

__all__ = ["Writer", "Written"]

_WRITE_GAP_S: Final = 1.0
_READ_BACK_PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 1.5)
"""Pauses before each reading back; a control plane with its cache on shows the old state for 2 s."""
_TRIES: Final = 3
_BACKOFF: Final = Backoff(0.4, 5.0)

T = TypeVar("T")


@dataclass(frozen=True)
class Written:
    """A write: its description and its call."""

    verb: str
    kind: str
    name: str
    method: str
    path: str
    body: Any = None
    old_version: str = ""

    @property
    def words(self) -> str:
        """Return the description."""
        doing = {"create": "creating", "update": "writing", "delete": "deleting"}.get(self.verb, f"{self.verb}ing")
        return f"{doing} {self.kind} {self.name}"


class Writer:
    """Makes writes and records them in the audit log."""

    def __init__(self, transport: Transport, clock: Clock, audit: Audit | None) -> None:
        self._transport = transport
        self._clock = clock
        self._audit = audit
        self._who = who()
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._guard = threading.Lock()
        self._last: dict[str, float] = {}

    @contextmanager
    def alone(self, kind: str, name: str) -> Iterator[None]:
        """Keep this client's other threads from writing the same object."""
        with self._guard:
            lock = self._locks[f"{kind}/{name}"]
        with lock:
            yield

    def apart(self, kind: str, name: str) -> None:
        """Wait until the last write to a mountable object is a second ago."""
        if kind not in ("config", "secret"):
            return
        last = self._last.get(f"{kind}/{name}")
        if last is not None and (rest := last + _WRITE_GAP_S - self._clock.monotonic()) > 0:
            self._clock.sleep(rest)

    def write(self, write: Written) -> Any:
        """Make a call that changes something, and record it.

        Raises:
            CloudEdgeError: the call was refused or not answered, which is recorded, too.
        """
        request_id = new_request_id()
        outcome, value = "done", None
        try:
            value = self._transport.call(
                write.method, write.path, what=write.words, body=write.body, request_id=request_id
            )
        except CloudEdgeError as error:
            outcome = f"{type(error).__name__}: {error.facts.get('code') or 'no answer'}"
            raise
        finally:
            self._last[f"{write.kind}/{write.name}"] = self._clock.monotonic()
            new = value.get("version", "") if isinstance(value, Mapping) else ""
            self._record(write, request_id, str(new or ""), outcome)
        return value

    def create(self, write: Written, look: Callable[[], T | None]) -> None:
        """Create an object; after a lost answer, check whether it exists before trying again.

        Raises:
            CloudEdgeError: the create was refused, or never answered.
        """
        patience = Patience(_TRIES, _BACKOFF, self._clock)
        while True:
            try:
                self.write(write)
            except Unavailable:
                if look() is not None:
                    return  # it was created; reading it back shows whether correctly
                if not patience.wait():
                    raise
            except (Conflict, InputError):
                # "In use already" has no code of its own. A proxy may have sent the request twice.
                if look() is None:
                    raise
                return
            else:
                return

    def read_back(self, write: Written, look: Callable[[], T], amiss: Callable[[T], str]) -> T:
        """Read an object until nothing is wrong with it, and return it.

        Args:
            write: The write.
            look: Reads the object.
            amiss: Describes what is wrong with the object; empty: nothing.

        Raises:
            Conflict: something stayed wrong.
        """
        wrong = ""
        for pause_s in _READ_BACK_PAUSES_S:
            self._clock.sleep(pause_s)
            found = look()
            wrong = amiss(found)
            if not wrong:
                return found
        raise Conflict(
            f"{write.words}: the object read back differs from the one written: {wrong}",
            hint="Compare with `cloudedge bie plan`: another writer changes it, or the control plane dropped a part.",
            object=f"{write.kind}/{write.name}",
        )

    def _record(self, write: Written, request_id: str, new_version: str, outcome: str) -> None:
        if self._audit is not None:
            self._audit(
                Write(
                    who=self._who,
                    at=rfc3339(self._clock.now()),
                    request_id=request_id,
                    verb=write.verb,
                    object=f"{write.kind}/{write.name}",
                    old_version=write.old_version,
                    new_version=new_version,
                    body_sha256=""
                    if write.body is None
                    else body_digest(write.body, everything=write.kind == "secret"),
                    outcome=outcome,
                )
            )
