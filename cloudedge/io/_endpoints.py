"""The choice among servers that answer alike: whom to ask, how long to wait, whom to leave alone.

`EndpointPool` decides and does nothing else: it opens no connection, starts no thread and reads no clock. Its caller
passes the time and reports how each try ended. The rules:

- Servers take turns. A try that others can take over is cut after its patience: three times the 95th percentile of the
  recent answers of the fastest server. The caller then asks the next server. Only calls that may be made twice belong
  here.
- Cut tries and probes are at most a tenth of the calls, after a small allowance. Under an overload every server is
  slow; the allowance runs out, tries are no longer cut, and the pool adds no load.
- A server that is silent for its patience, or cannot be reached, rests: 1 s, then twice as long each time, up to 30 s.
  A server that answered another call meanwhile is not silent: that one call is slow.
- A server whose rest is over comes back through a probe: a copy of a call that another server has answered. No call
  waits for it.
- The last server is never left alone: when all rest, the one whose rest ends first is asked, and the others after it.
  A try is cut for a server that rests only after ten times the patience. A call that has asked all servers returns, for
  the rest of its deadline, to the one that answered last.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from cloudedge.errors import ConfigError

__all__ = ["EndpointCounts", "EndpointPolicy", "EndpointPool"]

_SAMPLES = 64
_ENOUGH = 16
"""Answers after which a server's latencies count, and between two looks at them."""
_QUANTILE = 0.95
_SURE = 10.0
_NEVER = float("-inf")


@dataclass(frozen=True)
class EndpointPolicy:
    """The limits of an `EndpointPool`."""

    patience: float = 3.0
    """A try is cut after this many times the 95th percentile of recent answers."""
    least_patience_s: float = 0.05
    """No try is cut earlier: below this, a busy machine looks like a hung server."""
    first_patience_s: float = 1.0
    """The patience until enough answers are known."""
    share: float = 0.1
    """Cut tries and probes, as a share of calls. 0: no try is cut, and a server comes back without a probe."""
    allowance: float = 10.0
    """Cut tries and probes that are free at the start, and saved up at most."""
    rest_s: float = 1.0
    """The first rest of a server."""
    longest_rest_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share is between 0 and 1, not {self.share}")
        for name in ("patience", "least_patience_s", "first_patience_s", "rest_s", "longest_rest_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")


@dataclass
class EndpointCounts:
    """The counters of one server since the pool was made."""

    answered: int = 0
    cut: int = 0
    """Tries that were given up because another server could take over."""
    rests: int = 0
    probes: int = 0


@dataclass
class _Endpoint:
    rests_until: float = _NEVER
    strikes: int = 0
    """Failures in a row; above 0, the server comes back through a probe."""
    is_probed: bool = False
    last_answer: float = _NEVER
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    counts: EndpointCounts = field(default_factory=EndpointCounts)


class EndpointPool:
    """Chooses among servers, which it knows by number. Safe to use from several threads.

    Args:
        count: The number of servers.
        policy: Its limits.
    """

    def __init__(self, count: int, policy: EndpointPolicy | None = None) -> None:
        self.policy = policy or EndpointPolicy()
        self._endpoints = [_Endpoint() for _ in range(count)]
        self._lock = threading.Lock()
        self._turn = -1
        self._away = 0
        """Servers that rest or wait for a probe; 0 makes a choice a matter of taking turns."""
        self._allowance = self.policy.allowance
        self._patience_s = self.policy.first_patience_s

    def begin(self, now: float, tried: Collection[int] = ()) -> tuple[int, float | None]:
        """Choose the server of the next try.

        Args:
            now: The time.
            tried: Servers that this call has asked already; asked again only when there is no other.

        Returns:
            The server's number, and the time after which the try is to be cut; None: not before the call's deadline.
        """
        with self._lock:
            count = len(self._endpoints)
            self._turn = (self._turn + 1) % count
            chosen = self._turn
            if self._away or tried:
                chosen = min(range(count), key=lambda number: self._rank(number, now, tried))
                self._turn = chosen
            if not tried:
                self._allowance = min(self.policy.allowance, self._allowance + self.policy.share)
            if self._allowance < 1 or not self.policy.share or count == 1 or chosen in tried:
                return chosen, None
            if not self._away and not tried:
                return chosen, self._patience_s
            return chosen, self._patience_of(chosen, now, tried)

    def answered(self, number: int, begun: float, now: float) -> None:
        """Report an answer to a try that began at `begun`: the server is well."""
        with self._lock:
            endpoint = self._endpoints[number]
            endpoint.last_answer = now
            endpoint.counts.answered += 1
            endpoint.latencies.append(now - begun)
            if endpoint.strikes or endpoint.rests_until > _NEVER:
                endpoint.strikes, endpoint.rests_until = 0, _NEVER
                self._count_away()
            elif endpoint.counts.answered % _ENOUGH == 0:
                self._look_at_latencies()

    def refused(self, number: int, now: float) -> None:
        """Report that a server is there but has no room: it comes last for one rest, and returns without a probe."""
        with self._lock:
            endpoint = self._endpoints[number]
            endpoint.last_answer = now
            endpoint.rests_until = max(endpoint.rests_until, now + self.policy.rest_s)
            self._count_away()

    def failed(self, number: int, now: float) -> None:
        """Report that a server could not be reached, or could not answer: it rests."""
        with self._lock:
            self._rest(self._endpoints[number], now)

    def silent(self, number: int, begun: float, now: float, *, was_cut: bool) -> bool:
        """Report a try without an answer; returns whether the server rests because of it.

        Args:
            number: The server.
            begun: When the try began.
            now: When the caller gave up.
            was_cut: Another server is asked instead. Otherwise the call's deadline has passed, which says something
                about the server only if that took as long as its patience.
        """
        with self._lock:
            endpoint = self._endpoints[number]
            if was_cut:
                endpoint.counts.cut += 1
                self._allowance -= 1
            elif now - begun < self._patience_s:
                return False
            if endpoint.last_answer > begun:
                return False
            self._rest(endpoint, now)
            return True

    def due_probe(self, now: float) -> tuple[int, float] | None:
        """Return a server to probe now and the time-out of the probe, if there is one and the allowance permits.

        The caller asks that server and reports the outcome to `probed`.
        """
        if not self._away or not self.policy.share:
            return None
        with self._lock:
            if self._allowance < 1:
                return None
            for number, endpoint in enumerate(self._endpoints):
                if endpoint.strikes and not endpoint.is_probed and endpoint.rests_until <= now:
                    endpoint.is_probed = True
                    endpoint.counts.probes += 1
                    self._allowance -= 1
                    return number, self._patience_s
            return None

    def probed(self, number: int, begun: float, now: float, *, answered: bool) -> None:
        """Report the outcome of a probe."""
        self._endpoints[number].is_probed = False
        if answered:
            self.answered(number, begun, now)
        else:
            self.failed(number, now)

    def is_resting(self, number: int, now: float) -> bool:
        """Tell whether a server is left alone: it rests, or waits for a probe."""
        endpoint = self._endpoints[number]
        return endpoint.rests_until > now or (endpoint.strikes > 0 and self.policy.share > 0)

    def is_any_ready(self, now: float) -> bool:
        """Tell whether there is a server that does not rest."""
        return not self._away or any(not self.is_resting(number, now) for number in range(len(self._endpoints)))

    def counts(self, number: int) -> EndpointCounts:
        """Return the counters of a server."""
        return self._endpoints[number].counts

    def _patience_of(self, chosen: int, now: float, tried: Collection[int]) -> float | None:
        """Return the patience with a server where some rest or were tried; None: the rest of the deadline."""
        others = [number for number in range(len(self._endpoints)) if number != chosen and number not in tried]
        if any(not self.is_resting(number, now) for number in others):
            return self._patience_s
        if others or self.is_resting(chosen, now):  # only silence that is sure sends a call to one that rests, or back
            return max(self.policy.first_patience_s, _SURE * self._patience_s)
        return None

    def _rank(self, number: int, now: float, tried: Collection[int]) -> tuple[bool, bool, float, int]:
        if number in tried:
            return True, False, -self._endpoints[number].last_answer, 0
        resting = self.is_resting(number, now)
        rests_until = self._endpoints[number].rests_until if resting else _NEVER
        return False, resting, rests_until, (number - self._turn) % len(self._endpoints)

    def _rest(self, endpoint: _Endpoint, now: float) -> None:
        policy = self.policy
        if endpoint.rests_until > now and endpoint.strikes:
            return  # a try that began before the rest: not a further failure
        endpoint.strikes += 1
        rest_s = min(policy.longest_rest_s, policy.rest_s * 2.0 ** min(endpoint.strikes - 1, 60))
        endpoint.rests_until = now + rest_s
        endpoint.counts.rests += 1
        self._count_away()

    def _count_away(self) -> None:
        self._away = sum(each.strikes > 0 or each.rests_until > _NEVER for each in self._endpoints)
        self._look_at_latencies()

    def _look_at_latencies(self) -> None:
        """Set the patience by the fastest server that is there and has answered often enough."""
        usual = [
            sorted(each.latencies)[int(_QUANTILE * len(each.latencies))]
            for each in self._endpoints
            if not each.strikes and len(each.latencies) >= _ENOUGH
        ]
        if usual:
            self._patience_s = max(self.policy.least_patience_s, self.policy.patience * min(usual))
