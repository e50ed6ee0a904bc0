"""Fitting of sent tensors to a signature: names, types, the batch dimension, and LoD.

Paddle Serving passes LoD (level of detail: the offset of each row's values) beside the values. Programs of today take
rows of equal length, so this module cuts rows by the LoD, and fills short ones up with the look-up's padding id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle import Signature
from cloudedge.errors import InputError
from cloudedge.serving.formats._tensors import checked_cast, malformed, string_array
from cloudedge.serving.formats._text_arrays import parse_array

__all__ = ["Feed", "FeedPlan", "plan_of"]

Array = NDArray[Any]

MAX_FILLED = 1 << 24  # values of one variable with short rows filled up; a tiny request must not take gigabytes


@dataclass(frozen=True)
class Feed:
    """One feed variable of a signature."""

    alias: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    padding_id: int | None

    def from_text(self, text: str) -> Array:
        """Make the array from the text of a key/value pair."""
        if self.dtype.kind != "U":
            return self.fit(parse_array(self.alias, text))
        if text[:1] == "[":
            return self.fit(parse_array(self.alias, text))
        return self.fit(string_array(self.alias, [text]))

    def fit(self, array: Array, lod: Sequence[int] = ()) -> Array:
        """Cast, cut into rows, and add the batch dimension where one row came without it."""
        dtype = self.dtype
        if array.dtype != dtype and not (dtype.kind == "U" and array.dtype.kind == "U"):
            array = checked_cast(self.alias, array, dtype)
        if len(lod):
            return self._cut(array, lod)
        # The dimensions and sizes of one row: it cannot be a batch, which has one dimension more.
        if array.shape == self.shape or (
            array.ndim == len(self.shape)
            and all(want in (-1, got) for want, got in zip(self.shape, array.shape, strict=True))
        ):
            return array[np.newaxis]
        return array

    def _cut(self, array: Array, lod: Sequence[int]) -> Array:
        offsets = np.fromiter(lod, np.int64, len(lod))
        if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise malformed(self.alias, "its LoD has several levels or goes back", "Send one level: [0, 2, 5].")
        if not array.ndim or offsets[-1] != len(array) or len(offsets) < 2:  # noqa: PLR2004 - begin and end of one row
            raise malformed(
                self.alias, f"its LoD ends at {offsets[-1]}, {len(array) if array.ndim else 1} values were sent"
            )
        values = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array  # noqa: PLR2004 - a column
        lengths = np.diff(offsets)
        rows, longest = len(lengths), int(lengths.max())
        if (lengths == longest).all():
            cut = values.reshape(rows, longest, *values.shape[1:])
        else:
            cut = self._fill(values, lengths, longest)
        wanted = (rows, *self.shape)
        if cut.ndim != len(wanted) and wanted.count(-1) <= 1 and -1 not in self.shape:
            if cut.size != np.prod(wanted):
                raise malformed(self.alias, f"rows of {longest} values do not make shape {list(self.shape)}")
            cut = cut.reshape(wanted)
        return cut

    def _fill(self, values: Array, lengths: Array, longest: int) -> Array:
        if self.padding_id is None:
            raise malformed(
                self.alias,
                f"its rows have {lengths.min()} to {longest} values, and the model declares no padding id",
                "Send rows of one length, or split the model with a padding id.",
            )
        shape = (len(lengths), longest, *values.shape[1:])
        if np.prod(shape, dtype=np.float64) > MAX_FILLED:
            raise malformed(self.alias, f"{len(lengths)} rows filled up to {longest} values are too much")
        filled = np.full(shape, self.padding_id, values.dtype)
        filled[np.arange(longest) < lengths[:, np.newaxis]] = values
        return filled


class FeedPlan:
    """The lookup tables to parse requests with one signature, made once for each signature."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        padding = {lookup.feed: lookup.padding_id if lookup.padding_id >= 0 else None for lookup in signature.lookups}
        self.feeds: dict[str, Feed] = {}
        """By alias, and by the variable's own name where that is not another's alias."""
        self.fetches: dict[str, str] = {}
        """Alias by alias, and by the variable's own name."""
        self.names: dict[str, str] = {}
        """The variable's own name, by fetch alias."""
        for variable in signature.feed:
            alias = variable.alias or variable.name
            dtype: np.dtype[Any] = np.dtype(np.str_ if variable.dtype == "string" else variable.dtype)
            pad = padding.get(variable.name, padding.get(alias))
            self.feeds[alias] = Feed(alias, dtype, variable.shape, pad)
        self.padding = {feed.alias: feed.padding_id for feed in self.feeds.values()}
        """The id that fills up short rows, by alias."""
        self.rows: dict[str, Feed] = {
            lookup.input: feed for lookup in signature.lookups if (feed := self._named(lookup.feed)) is not None
        }
        """By the dense program's input: Paddle Serving's clients send ids under the name of the rows."""
        for variable in signature.feed:
            self.feeds.setdefault(variable.name, self.feeds[variable.alias or variable.name])
        for variable in signature.fetch:
            alias = variable.alias or variable.name
            self.fetches[alias], self.names[alias] = alias, variable.name
        for variable in signature.fetch:
            self.fetches.setdefault(variable.name, variable.alias or variable.name)

    def _named(self, name: str) -> Feed | None:
        for variable in self.signature.feed:
            if name in (variable.name, variable.alias):
                return self.feeds[variable.alias or variable.name]
        return None

    def feed(self, name: str, array: Array, lod: Sequence[int] = ()) -> tuple[str, Array]:
        """Fit one tensor; return its alias and its array.

        Raises:
            InputError: The model has no such feed, or the tensor does not fit; names it.
        """
        feed = self.feeds.get(name)
        if feed is None:
            feed = self.rows.get(name)
            if feed is not None and not len(lod):
                raise malformed(
                    name, "ids under the name of their rows need a LoD", f"Send a LoD, or feed {feed.alias!r} itself."
                )
        if feed is None:
            raise self.unknown("feed", name, self.feeds)
        return feed.alias, feed.fit(array, lod)

    def fetch(self, names: Iterable[str]) -> list[str]:
        """Turn requested names into aliases.

        Raises:
            InputError: A name is not an output; upstream takes the first output instead.
        """
        try:
            return [self.fetches[name] for name in names]
        except KeyError as error:
            raise self.unknown("fetch", error.args[0], self.fetches) from None

    @staticmethod
    def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
        """Make the error for a name that the model does not have."""
        return InputError(
            f"invalid arg list: the model has no {kind} variable {name!r}; it has {', '.join(sorted(known))}",
            variable=name,
        )


_plans: dict[int, FeedPlan] = {}


def plan_of(signature: Signature) -> FeedPlan:
    """Return the plan of a signature, made when it is first seen."""
    # By identity: hashing the signature would cost more than all the rest of a call. A plan keeps its signature alive,
    # so no other object can take over its identity.
    plan = _plans.get(id(signature))
    if plan is None:
        if len(_plans) >= 64:  # noqa: PLR2004 - more than are ever loaded at once
            _plans.clear()
        plan = _plans[id(signature)] = FeedPlan(signature)
    return plan
