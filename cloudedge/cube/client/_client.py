"""The blocking client: reads rows of a table by key from all its shards.

The compiled core deduplicates keys, splits them, asks all shards at once, retries and merges. This module decides
which answers are accepted:

- every shard must have answered, or the caller has declared a default and learns how many keys got it;
- all answers must come from one version, the pinned one where there is a pin;
- all values must have one width.
"""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from types import TracebackType
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cloudedge import _core
from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.client._errors import ShardUnavailable, UnknownVersion, VersionSkew
from cloudedge.cube.formats import CubeConf, CubeTable
from cloudedge.errors import ConfigError, InputError, IntegrityError, Rejected
from cloudedge.io import join_address, parse_address

__all__ = ["UNKNOWN_VERSION_CODE", "Client", "ClientConfig", "KeyLike", "SeekResult", "ShardAnswer", "ShardAnswers"]

UNKNOWN_VERSION_CODE = 10404
_ELSEWHERE = {0, 1011, 2003, 2004}
"""RPC errors that concern a replica, not the request; 0 stands for no answer at all."""

KeyLike = NDArray[np.integer[Any]] | Iterable[SupportsIndex]
"""Integers: an array of them, or any iterable."""

_FOUND, _FAILED = 1, 2
_ALL_BITS = 2**64 - 1
_SKEW_ROUNDS = 4
_SKEW_WAIT_S = 0.005


def _as_keys(keys: KeyLike) -> NDArray[np.uint64]:
    """Convert to unsigned 64-bit keys; a negative one becomes its two's complement, as in the table."""
    if not isinstance(keys, np.ndarray):
        try:
            keys = np.array([operator.index(key) & _ALL_BITS for key in keys], np.uint64)
        except TypeError as error:
            raise InputError("keys are a one-dimensional sequence of integers") from error
    if keys.ndim != 1 or (keys.dtype.kind not in "iu" and keys.size):
        raise InputError(f"keys are one-dimensional integers, not {keys.ndim}-dimensional {keys.dtype}")
    return np.ascontiguousarray(keys, np.uint64)


@dataclass(frozen=True)
class ClientConfig:
    """The addresses of a table's shards, and the time-outs and retries of calls. Immutable; checked when made."""

    shards: Sequence[Sequence[str]]
    """For each shard, in order, the addresses (host:port) of its replicas."""
    timeout_ms: int = 500
    """For a whole call, retries included."""
    connect_timeout_ms: int = 200
    """For each new connection; brpc's default."""
    retry: int = 1
    """Further attempts on a shard after the first, on another replica where there is one. Where replicas cannot be
    reached or are stopping, all others are asked before a call fails, whatever this number is."""
    backup_request_ms: int | None = None
    """Ask another replica too when there is no answer after this long; the first answer wins. 0: never, as in
    cube.conf; None: after an equal share of the timeout for each attempt."""
    load_balancer: Literal["rr", "least"] = "rr"
    """Replicas in turn, or the one with the fewest requests of this client under way."""
    on_missing_shard: Literal["error", "default"] = "error"
    """The reaction when no replica of a shard answers: fail, or give its keys ``default``."""
    default: float = 0.0
    """The value of every element of such a key's row."""
    on_version_skew: Literal["retry", "error"] = "retry"
    """The reaction when shards answer from different versions: ask again, with a pin where the servers understand
    pins, or fail at once."""
    value_bytes: int | None = None
    """The width that every value must have; None takes that of the first value found."""
    max_idle_connections: int = 32
    """Connections kept open to each replica between calls."""

    def __post_init__(self) -> None:
        if not self.shards or not all(self.shards):
            raise ConfigError("a cube client needs at least one shard, and at least one server for each")
        if isinstance(self.shards, str) or any(isinstance(replicas, str) for replicas in self.shards):
            raise ConfigError(
                "shards is a list with one list of addresses for each shard",
                hint='For one shard with two replicas, write [["10.0.0.1:8027", "10.0.0.2:8027"]].',
            )
        for name in ("timeout_ms", "connect_timeout_ms", "max_idle_connections"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("retry", "backup_request_ms"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name} must not be below 0, not {getattr(self, name)}")
        if self.value_bytes is not None and self.value_bytes < 0:
            raise ConfigError(f"value_bytes must not be below 0, not {self.value_bytes}")

    @classmethod
    def from_table(cls, table: CubeTable, **more: Any) -> ClientConfig:
        """Take the settings of a table from cube.conf; `more` are fields it does not have.

        brpc's balancers by load (``la``) become ``least``, all others ``rr``.
        """
        return cls(
            [[join_address(*endpoint) for endpoint in table.replicas(shard)] for shard in range(table.shards)],
            timeout_ms=table.timeout_ms,
            retry=table.retry,
            backup_request_ms=table.backup_request_ms,
            load_balancer="least" if table.load_balancer == "la" else "rr",
            **more,
        )


@dataclass(frozen=True)
class SeekResult:
    """The rows of some keys, in the order the keys were given."""

    values: NDArray[Any]
    """One row per key; zeros where `found` is False and the shard answered."""
    found: NDArray[np.bool_]
    """A mask of the keys that are in the table."""
    version: str | None
    """The version all rows come from; None when no shard was asked or none answered."""
    defaulted: NDArray[np.bool_]
    """A mask of the keys that got the declared default because their shard did not answer."""
    failed_shards: tuple[int, ...] = ()

    @property
    def defaulted_share(self) -> float:
        """The share of keys that got the declared default."""
        return float(self.defaulted.mean()) if len(self.defaulted) else 0.0


class ShardAnswer(NamedTuple):
    number: int
    keys: int
    answered: bool
    version: str
    attempts: list[tuple[str, str, int]]

    @property
    def is_away(self) -> bool:
        """True if it failed for reasons that do not concern the request."""
        return not self.answered and {code for _, _, code in self.attempts} <= _ELSEWHERE


class ShardAnswers(NamedTuple):
    rows: NDArray[np.uint8]
    states: NDArray[np.uint8]
    shards: list[ShardAnswer]

    @property
    def failed(self) -> list[ShardAnswer]:
        return [shard for shard in self.shards if not shard.answered]

    @property
    def versions(self) -> Counter[str]:
        return Counter(shard.version for shard in self.shards if shard.answered)


class Client:
    """Reads rows by key from all shards of a table. Safe to share between threads.

    >>> with Client(ClientConfig([["127.0.0.1:8027"]])) as client:  # doctest: +SKIP
    ...     rows = client.seek([1, 2, 3]).values
    """

    def __init__(self, config: ClientConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._core: _core.CubeClient | None = _core.CubeClient(
            shards=[[parse_address(address) for address in replicas] for replicas in config.shards],
            timeout_ms=config.timeout_ms,
            connect_timeout_ms=config.connect_timeout_ms,
            retry=config.retry,
            backup_ms=-1 if config.backup_request_ms is None else config.backup_request_ms,
            least_loaded=config.load_balancer == "least",
            max_idle=config.max_idle_connections,
        )

    @classmethod
    @renamed_arguments(dict_name="table")
    def from_conf(cls, path: str | os.PathLike[str], table: str, *, follow: bool = False, **more: Any) -> Client:
        """Read cube.conf and make a client of one of its tables.

        Args:
            path: The file.
            table: Its name.
            follow: Ask the servers of a new cube.conf once it has replaced this one, as a reshard does.
            more: Fields of `ClientConfig`.

        Raises:
            ConfigError: the file is no cube.conf, or has no such table.
        """
        if follow:
            from cloudedge.cube.client._reloading_client import FollowingClient  # noqa: PLC0415 - it is a client itself

            return FollowingClient(path, table, **more)
        return cls(ClientConfig.from_table(CubeConf.from_file(path)[table], **more))

    def seek(
        self,
        keys: KeyLike,
        *,
        pin: str | None = None,
        dtype: DTypeLike = np.float32,
        timeout_s: float | None = None,
    ) -> SeekResult:
        """Look keys up.

        Args:
            keys: Unsigned 64-bit integers; duplicates are fine.
            pin: The version that has to answer.
            dtype: The type of a value's elements.
            timeout_s: The time that the caller has left, if less than `ClientConfig.timeout_ms`.

        Raises:
            ShardUnavailable: a shard did not answer in time, and no default is declared.
            UnknownVersion: a shard does not have the pinned version.
            VersionSkew: the answers do not come from one version, or not from the pinned one.
            Rejected: a server refused the request itself.
            IntegrityError: values differ in width, or do not hold a whole number of elements.
        """
        wanted = _as_keys(keys)
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        answer = self._ask(wanted, pin, deadline)
        self._require_answers(answer, pin)
        if len(answer.versions) > 1 and self.config.on_version_skew == "retry":
            answer = self._settle(wanted, answer, pin, deadline)
        self._require_one_version(answer, pin)
        return self._result(answer, np.dtype(dtype))

    def measure(
        self, *, callers: int, batch: int, key_space: int, seconds: float, seed: int = 1, pin: str | None = None
    ) -> dict[str, Any]:
        """Seek random keys from native threads for a while and measure the speed.

        Args:
            callers: Threads, each with one call under way.
            batch: Keys per call.
            key_space: Keys are drawn from 0 to this, exclusive.
            seconds: The time to measure, after a fifth of it (a second at most) to warm up.
            seed: Of the keys drawn.
            pin: The version that has to answer.

        Returns:
            ``calls``, ``keys``, ``missing`` keys, ``failed`` calls and the first ``failure``, calls answered from
            ``mixed`` versions (not asked again, as `seek` does), ``seconds``, ``p50_us``, ``p99_us``, ``max_us``.
        """
        if self._core is None:
            raise InputError("this cube client is closed")
        return self._core.generate_calls(
            callers=callers, batch=batch, key_space=key_space, seconds=seconds,
            warmup_seconds=min(1.0, seconds / 5), seed=seed, pin=pin,
        )  # fmt: skip

    def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        self._core = None

    def __enter__(self) -> Client:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, keys: NDArray[np.uint64], pin: str | None, deadline: float | None = None) -> ShardAnswers:
        if self._core is None:
            raise InputError("this cube client is closed")
        timeout_ms = None if deadline is None else max(1, ceil((deadline - self._clock.monotonic()) * 1e3))
        rows, states, shards, odd = self._core.seek(keys, pin, self.config.value_bytes, timeout_ms)
        if odd is not None or rows is None or states is None:
            key, width, expected = odd or (0, 0, 0)
            raise IntegrityError(
                f"the value of key {key} has {width} bytes, others have {expected}",
                hint="All rows of a table have one width: check the versions that the shards have loaded.",
                key=key,
            )
        return ShardAnswers(rows, states, [ShardAnswer(*shard) for shard in shards])

    def _settle(
        self, keys: NDArray[np.uint64], answer: ShardAnswers, pin: str | None, deadline: float | None
    ) -> ShardAnswers:
        """Ask again until all shards answer from one version, or return the last mixture.

        Where the servers understand pins, asking for the version that most shards had settles it at once, as long as
        the others still have it or have it already. Otherwise only waiting for the switch to end helps. A shard that
        was away before and still is keeps its declared default.
        """
        for attempt in range(_SKEW_ROUNDS):
            for version, _ in answer.versions.most_common():
                if self._is_over(deadline):
                    return answer
                again = self._ask(keys, pin if pin is not None else version, deadline)
                away = {shard.number for shard in again.failed}
                was_away = {shard.number for shard in answer.failed}
                is_away = all(shard.is_away for shard in again.failed)
                if is_away and away <= was_away and len(again.versions) == 1:
                    return again
            wait = _SKEW_WAIT_S * 2**attempt
            if self._is_over(deadline, wait):
                return answer
            self._clock.sleep(wait)
            again = self._ask(keys, pin, deadline)
            self._require_answers(again, pin)
            answer = again
            if len(answer.versions) <= 1:
                break
        return answer

    def _is_over(self, deadline: float | None, in_s: float = 0) -> bool:
        return deadline is not None and self._clock.monotonic() + in_s >= deadline

    def _require_answers(self, answer: ShardAnswers, pin: str | None) -> None:
        for shard in answer.failed:
            tried = "; ".join(f"{replica}: {outcome}" for replica, outcome, _ in shard.attempts)
            codes = {code for _, _, code in shard.attempts}
            facts: dict[str, Any] = {"shard": shard.number, "attempts": shard.attempts}
            if codes == {UNKNOWN_VERSION_CODE}:
                raise UnknownVersion(
                    f"shard {shard.number} does not have version {pin!r} ({tried})",
                    hint="Load it there first, or read without a pin.",
                    version=pin,
                    **facts,
                )
            if not codes <= {*_ELSEWHERE, UNKNOWN_VERSION_CODE}:
                raise Rejected(f"shard {shard.number} refused the request ({tried})", **facts)
            if self.config.on_missing_shard == "error":
                raise ShardUnavailable(
                    f"shard {shard.number} of {len(self.config.shards)} did not answer: {tried}",
                    hint="Start a replica, raise timeout_ms, or declare on_missing_shard='default'.",
                    **facts,
                )

    def _require_one_version(self, answer: ShardAnswers, pin: str | None) -> None:
        # A shard with very many keys is asked several times, so it may be in here with two versions.
        found = sorted({(shard.number, shard.version) for shard in answer.shards if shard.answered})
        if set(answer.versions) <= ({pin} if pin is not None else set(list(answer.versions)[:1])):
            return
        versions = dict(found)
        seen = ", ".join(f"shard {number} has {version!r}" for number, version in found)
        what = "the shards answered from different versions" if pin is None else f"version {pin!r} was asked for"
        hint = "A switch is under way: try again."
        if pin is not None:
            hint = "A server that does not understand pins has another version: wait for the switch to end there."
        raise VersionSkew(f"{what}: {seen}", hint=hint, versions=versions, pin=pin)

    def _result(self, answer: ShardAnswers, dtype: np.dtype[Any]) -> SeekResult:
        width = answer.rows.shape[1]
        if width % dtype.itemsize:
            raise IntegrityError(f"values have {width} bytes, which are not whole elements of {dtype}")
        if answer.failed and width == 0:
            failed = answer.failed[0]
            raise ShardUnavailable(
                f"shard {failed.number} did not answer, and without a value the width of its default is not known",
                hint="Set value_bytes.",
                shard=failed.number,
                attempts=failed.attempts,
            )
        values = answer.rows.view(dtype) if width else np.zeros((len(answer.rows), 0), dtype)
        defaulted = answer.states == _FAILED
        if answer.failed:
            values[defaulted] = self.config.default
        return SeekResult(
            values=values,
            found=answer.states == _FOUND,
            version=next(iter(answer.versions), None),
            defaulted=defaulted,
            failed_shards=tuple(sorted({shard.number for shard in answer.failed})),
        )
