"""Locks made of objects, for stores without locks of their own.

A claim is an object ``locks/<name>/<kind>-<ttl in ms>-<id>``. Its holder rewrites it every third of its time to live;
a claim that was not rewritten for longer than that is stale, and any process that sees it removes it. Only the store's
clock measures age, so the clocks of competing machines need not agree. The store must list every write that it
answered before.

Taking a lock repeats two steps, *write a claim under a unique name* and *list the claims*, and follows `decide`:

- a sharer enters once no exclusive claim is listed, and until then leaves its claim standing;
- an exclusive claimer enters once no other claim is listed; until then it leaves its claim standing only if all others
  are exclusive and come after it by id, else it withdraws, waits and returns under a new id.

Two claimers that exclude each other are never both in: each wrote its claim before it listed, and one of the two
writes came last. The one that wrote last listed after both writes, so it saw the other's claim, which stands until
its holder leaves. It entered only once the other was gone.

No claimer waits for ever: a claim that stands while it waits is a sharer's, or the first exclusive one in line. A
waiting sharer waits for exclusive claims only: those that are not in withdraw once they see it, the one that is in
leaves when its work is done. The first in line waits for the one that is in, since all after it withdraw. So the
holder leaves, and then a waiting claimer enters. Sharers come first: an exclusive claimer may wait long, but never
holds up a sharer by waiting. That suits the two users of these locks: garbage collection does not wait at all, pushes
share the lock and wait for it.

Staleness takes nothing from a live holder: a holder counts its lease from *before* it sent the write, and a renewal
only if the answer came before the lease ran out. Others count from the time the store wrote, and add a slack for
whole-second dates. So a holder knows that its lease is over before any other process may conclude so. Without the
store's help, no lock can stop a request that is under way at that moment; therefore call `Lease.check` right before
a write that matters.
"""

from __future__ import annotations

import enum
import json
import os
import re
import threading
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cloudedge.clock import rfc3339
from cloudedge.errors import CloudEdgeError, Conflict, Unavailable
from cloudedge.io import who

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudedge.clock import Clock
    from cloudedge.hub.core import ObjectInfo

__all__ = ["TTL_S", "Claim", "Lease", "LeaseStep", "decide", "lease"]

TTL_S: Final = 30.0
"""Time that a lock outlives a killed holder: long enough for two lost heartbeats, short enough to wait for."""

_SLACK_S: Final = 2.0  # dates are whole seconds, and a store's machines agree to about one
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_CLAIM_KEY = re.compile(r"(exclusive|shared)-([0-9]{1,9})-([0-9a-f]{32})")


class Objects(Protocol):
    """The store operations that a lock needs; each method as in `ObjectStore`."""

    url: str

    def head(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""
        ...

    def get(self, key: str) -> Iterator[bytes]:
        """Stream an object."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the objects under a prefix."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object."""
        ...


@dataclass(frozen=True)
class Claim:
    """A claim in a listing."""

    id: str
    shared: bool
    ttl_s: float = TTL_S
    key: str = ""


class LeaseStep(enum.Enum):
    """The next step after a listing of the claims."""

    ENTER = "the lock is ours"
    STAND = "wait, and leave the claim standing"
    WITHDRAW = "take the claim back and wait"
    WAIT = "wait without a claim"
    CLAIM = "write a claim"


def decide(mine: str | None, claims: Sequence[Claim], *, shared: bool) -> LeaseStep:
    """Return the next step after a listing of live claims, taken after `mine` (if any) was written."""
    rivals = [c for c in claims if c.id != mine and not (shared and c.shared)]
    if mine is None:
        return LeaseStep.CLAIM if shared or not rivals else LeaseStep.WAIT
    if all(c.id != mine for c in claims):
        return LeaseStep.WITHDRAW  # a slow store: the claim was stale when it was listed
    if not rivals:
        return LeaseStep.ENTER
    if shared or all(mine < c.id and not c.shared for c in rivals):
        return LeaseStep.STAND
    return LeaseStep.WITHDRAW


class Lease:
    """This process's claim, kept alive by a thread until it is withdrawn or lost."""

    def __init__(self, store: Objects, name: str, *, shared: bool, ttl_s: float, clock: Clock) -> None:
        self.id = uuid.uuid4().hex
        self.name = name
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._key = f"locks/{name}/{'shared' if shared else 'exclusive'}-{round(ttl_s * 1000)}-{self.id}"
        self._body = json.dumps({"owner": f"{who()} pid {os.getpid()}", "since": rfc3339(clock.now())}).encode()
        self._valid_until = 0.0
        self._lost = False
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._keep_alive, name=f"lock {name}", daemon=True)

    def claim(self) -> None:
        """Write the claim and start renewing it."""
        started = self._clock.monotonic()
        self._store.put(self._key, self._body)
        self._valid_until = started + self._ttl_s
        self._heart.start()

    def withdraw(self) -> None:
        """Take the claim back; a claim that the store could not delete goes stale by itself."""
        self._stop.set()
        if self._heart.is_alive():
            self._heart.join()  # a renewal under way must not come after the deletion
        with suppress(CloudEdgeError):
            self._store.delete(self._key)

    def in_time(self) -> bool:
        """Return True, without asking the store, if no other process can have found the claim stale yet."""
        return not self._lost and self._clock.monotonic() < self._valid_until

    def check(self) -> None:
        """Check that the lock is still held; call it right before a write that depends on it.

        Raises:
            Unavailable: it is lost, or the store does not answer; stop.
        """
        # The store is asked, too: this machine's clock stops while it sleeps, the store's does not.
        if not self.in_time() or not self._stands():
            self._lost = True
            raise Unavailable(
                f"{self._store.url}: the lock {self.name} was lost: not renewed within {self._ttl_s:g} s",
                hint="Run the same command again; what was written so far is kept.",
                lock=self.name,
            )

    def _stands(self) -> bool:
        seen = self._store.head(self._key)
        return seen is not None and seen.age_s <= self._ttl_s

    def _keep_alive(self) -> None:
        while not self._stop.wait(self._ttl_s / 3) and not self._lost:
            with suppress(CloudEdgeError):  # the next renewal tries again, or the lease runs out
                self._renew()

    def _renew(self) -> None:
        started = self._clock.monotonic()
        if not self._stands():
            self._lost = True
            return
        self._store.put(self._key, self._body)
        if self.in_time():
            self._valid_until = started + self._ttl_s
        else:
            self._lost = True


@contextmanager
def lease(
    store: Objects, name: str, *, shared: bool, wait_s: float, clock: Clock, ttl_s: float = TTL_S
) -> Iterator[Lease]:
    """Hold a lock in `store` while the block runs.

    Raises:
        Conflict: others still hold it after `wait_s`.
        Unavailable: the lock was lost while the block ran, so that others may have run at the same time.
    """
    held = _acquire(store, name, shared=shared, wait_s=wait_s, clock=clock, ttl_s=ttl_s)
    try:
        yield held
        held.check()
    finally:
        held.withdraw()


def _acquire(store: Objects, name: str, *, shared: bool, wait_s: float, clock: Clock, ttl_s: float) -> Lease:
    deadline = clock.monotonic() + wait_s
    pause_s = _PAUSE_S
    step = LeaseStep.CLAIM  # most locks are free: claim first, then look
    mine: Lease | None = None
    try:
        while True:
            if step is LeaseStep.CLAIM:
                mine = Lease(store, name, shared=shared, ttl_s=ttl_s, clock=clock)
                mine.claim()
            claims = list(_live_claims(store, name))
            step = decide(mine.id if mine else None, claims, shared=shared)
            if mine and step is LeaseStep.ENTER and mine.in_time():
                entered, mine = mine, None
                return entered
            left = deadline - clock.monotonic()
            if left <= 0:
                others = [c for c in claims if not (mine and c.id == mine.id) and not (shared and c.shared)]
                raise _lock_refused(store, name, others, wait_s)
            if mine and step in (LeaseStep.WITHDRAW, LeaseStep.ENTER):
                mine.withdraw()
                mine = None
            if step is not LeaseStep.CLAIM:
                clock.sleep(min(left, pause_s * (0.5 + clock.random() / 2)))
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    finally:
        if mine:
            mine.withdraw()


def _live_claims(store: Objects, name: str) -> Iterator[Claim]:
    """List the live claims, and remove those of killed holders."""
    folder = f"locks/{name}/"
    for info in store.list(folder):
        match = _CLAIM_KEY.fullmatch(info.key.removeprefix(folder))
        if not match:
            continue
        claim = Claim(match[3], shared=match[1] == "shared", ttl_s=int(match[2]) / 1000, key=info.key)
        if info.age_s > claim.ttl_s + _SLACK_S:
            store.delete(claim.key)
        else:
            yield claim


def _lock_refused(store: Objects, name: str, rivals: list[Claim], wait_s: float) -> CloudEdgeError:
    if not rivals:
        return Unavailable(
            f"{store.url}: the lock {name} is free, but claiming it took longer than a claim lives",
            hint="Run the command again; the store is slow.",
            lock=name,
        )
    owner, since = "a process that just left", "now"
    with suppress(CloudEdgeError, ValueError, KeyError, TypeError):  # the claim may be gone, or foreign
        about = json.loads(b"".join(store.get(rivals[0].key)))
        owner, since = str(about["owner"]), str(about["since"])
    return Conflict(
        f"{store.url}: the lock {name} is held by {owner} since {since}; waited {wait_s:g} s for it",
        hint="Run the command again when that process is done. If it was killed, its lock ends by itself "
        f"after {rivals[0].ttl_s:g} s.",
        lock=name,
        owner=owner,
        since=since,
    )
