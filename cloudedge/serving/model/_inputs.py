"""Input validation: the arrays of a request against the signature of its version, before they cost anything.

Each request is checked for names, dtypes, shapes, rows, and the memory it takes once ids have become rows. NaN and
infinity are checked for a whole batch at once, which is cheaper; `find_non_finite` then finds the request with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle import Signature, Variable
from cloudedge.errors import InputError

__all__ = ["FeedCheck", "alias"]

Arrays = list[NDArray[Any]]
ShapeKey = tuple[tuple[int, ...], ...]


def alias(variable: Variable) -> str:
    """Return the name of a variable that clients use."""
    return variable.alias or variable.name


class FeedCheck:
    """The input check of one signature, prepared for many requests.

    Args:
        signature: The feeds and fetches that clients see.
        max_rows: Most rows in one request.
        max_bytes: Most bytes of one request's arrays, the rows of its ids included.
    """

    def __init__(self, signature: Signature, *, max_rows: int, max_bytes: int) -> None:
        for variable in signature.feed:
            if variable.dtype == "string":
                raise InputError(f"{variable.name!r} is fed strings, which are not served", variable=variable.name)
        self._expected = [(alias(v), np.dtype(v.dtype), tuple(v.shape)) for v in signature.feed]
        self._fixed = all(-1 not in shape for _, _, shape in self._expected)
        self.names = [name for name, _, _ in self._expected]
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.set_row_bytes({})

    def set_row_bytes(self, widths: Mapping[int, int]) -> None:
        """Set the bytes of rows looked up for each value of a feed, by the feed's position."""
        self._value_bytes = [dtype.itemsize + widths.get(i, 0) for i, (_, dtype, _) in enumerate(self._expected)]
        self._fixed_row_bytes = self._row_bytes(tuple(shape for _, _, shape in self._expected)) if self._fixed else 0

    def _row_bytes(self, key: ShapeKey) -> int:
        return sum(prod(shape) * each for shape, each in zip(key, self._value_bytes, strict=True))

    def bytes_of(self, rows: int, key: ShapeKey) -> int:
        """Return the memory of `rows` rows of one shape, with the rows looked up for them."""
        return rows * (self._fixed_row_bytes or self._row_bytes(key))

    def rows_in_bounds(self, key: ShapeKey) -> int:
        """Return how many rows of one shape may run together; at least one."""
        row_bytes = self._fixed_row_bytes or self._row_bytes(key)
        return max(1, self._max_bytes // row_bytes) if row_bytes else self._max_rows

    def check(self, feed: Mapping[str, NDArray[Any]]) -> tuple[Arrays, int, ShapeKey]:
        """Check one request.

        Returns:
            Its arrays in the signature's order, its number of rows, and the key that requests of one batch share.

        Raises:
            InputError: A feed is missing, unknown, or of the wrong dtype or shape; names the variable.
        """
        if len(feed) != len(self._expected):
            self._refuse_names(feed)
        arrays: Arrays = []
        rows = -1
        for name, dtype, shape in self._expected:
            array = feed.get(name)
            if array is None:
                self._refuse_names(feed)
            if array.dtype != dtype:
                array = _cast(name, array, dtype)
            if array.shape[1:] != shape or not array.ndim:
                _require_shape(name, array, shape)
            count = array.shape[0]
            if count != rows:
                rows = self._first_rows(name, count) if rows < 0 else _refuse_rows(name, count, rows)
            arrays.append(array)
        if self._fixed:
            if rows * self._fixed_row_bytes > self._max_bytes:
                self._refuse_bytes(arrays)
            return arrays, rows, ()
        key = tuple(array.shape[1:] for array in arrays)
        if rows * self._row_bytes(key) > self._max_bytes:
            self._refuse_bytes(arrays)
        return arrays, rows, key

    def _refuse_bytes(self, arrays: Arrays) -> NoReturn:
        sizes = [array.size * each for array, each in zip(arrays, self._value_bytes, strict=True)]
        largest = int(np.argmax(sizes))
        name, array = self.names[largest], arrays[largest]
        raise InputError(
            f"feed {name!r} has shape {list(array.shape)}: with the rows looked up for it, the request takes "
            f"{sum(sizes)} bytes; {self._max_bytes} are the limit",
            hint="Send several smaller requests.",
            variable=name,
        )

    def find_non_finite(self, arrays: Sequence[NDArray[Any]]) -> InputError | None:
        """Return an error that names the first array with a NaN or an infinity, or None."""
        for name, array in zip(self.names, arrays, strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                return InputError(f"feed {name!r}: row {row} holds a NaN or an infinity", variable=name)
        return None

    def _first_rows(self, name: str, count: int) -> int:
        if not 0 < count <= self._max_rows:
            raise InputError(
                f"feed {name!r} has {count} rows; a request has 1 to {self._max_rows}",
                hint="Send several smaller requests.",
                variable=name,
            )
        return count

    def _refuse_names(self, feed: Mapping[str, Any]) -> NoReturn:
        for name in self.names:
            if name not in feed:
                raise InputError(f"feed {name!r} is missing", hint=f"This model takes {self.names}.", variable=name)
        unknown = sorted(feed.keys() - set(self.names))
        raise InputError(f"feed {unknown[0]!r} is unknown", hint=f"This model takes {self.names}.", variable=unknown[0])


def _refuse_rows(name: str, count: int, rows: int) -> int:
    raise InputError(f"feed {name!r} has {count} rows, others have {rows}", variable=name)


def _cast(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert an array where its meaning survives: integers to wider ones or to floats, floats to other floats."""
    kinds = array.dtype.kind, dtype.kind
    if kinds not in {("i", "i"), ("u", "u"), ("u", "i"), ("i", "u"), ("i", "f"), ("u", "f"), ("f", "f")}:
        raise InputError(f"feed {name!r} is {array.dtype}, wanted {dtype}", variable=name)
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InputError(f"feed {name!r}: a value does not fit into {dtype}", variable=name)
    with np.errstate(over="ignore"):  # an overflow becomes an infinity, which is refused with its row
        return array.astype(dtype)


def _require_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    fits = array.ndim == len(shape) + 1 and all(w in (-1, s) for s, w in zip(array.shape[1:], shape, strict=True))
    if not fits:
        wanted = ", ".join(["rows", *("any" if side < 0 else str(side) for side in shape)])
        raise InputError(f"feed {name!r} has shape {list(array.shape)}, wanted [{wanted}]", variable=name)
    if array.size > np.iinfo(np.int32).max:
        raise InputError(f"feed {name!r} has {array.size} elements, more than a request may have", variable=name)
