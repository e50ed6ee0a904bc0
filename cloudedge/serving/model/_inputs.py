"""What a version takes: every array is checked against its signature before it costs anything.

Checked here, for each request: names, dtypes, shapes, rows, and the memory it takes once ids have become rows. Checked
for a whole batch at once, where it is cheaper: NaN and infinity (`not_finite` then says whose they are).
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
    """Return the name clients use."""
    return variable.alias or variable.name


class FeedCheck:
    """A signature's feeds, made ready for checking many requests.

    Args:
        signature: What clients see.
        max_rows: In one request.
        max_bytes: Of one request's arrays, the rows of its ids included.
    """

    def __init__(self, signature: Signature, *, max_rows: int, max_bytes: int) -> None:
        for variable in signature.feed:
            if variable.dtype == "string":
                raise InputError(f"{variable.name!r} is fed strings, which are not served", variable=variable.name)
        self._wanted = [(alias(v), np.dtype(v.dtype), tuple(v.shape)) for v in signature.feed]
        self._fixed = all(-1 not in shape for _, _, shape in self._wanted)
        self.names = [name for name, _, _ in self._wanted]
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.looks_up({})

    def looks_up(self, widths: Mapping[int, int]) -> None:
        """Say how many bytes of rows each value of a feed, by its place, is looked up for."""
        self._value_bytes = [dtype.itemsize + widths.get(i, 0) for i, (_, dtype, _) in enumerate(self._wanted)]
        self._fixed_row_bytes = self._row_bytes(tuple(shape for _, _, shape in self._wanted)) if self._fixed else 0

    def _row_bytes(self, key: ShapeKey) -> int:
        return sum(prod(shape) * each for shape, each in zip(key, self._value_bytes, strict=True))

    def bytes_of(self, rows: int, key: ShapeKey) -> int:
        """Return what so many rows of one shape take, with what is looked up for them."""
        return rows * (self._fixed_row_bytes or self._row_bytes(key))

    def rows_in_bounds(self, key: ShapeKey) -> int:
        """Return how many rows of one shape may be run together; one may always."""
        row_bytes = self._fixed_row_bytes or self._row_bytes(key)
        return max(1, self._max_bytes // row_bytes) if row_bytes else self._max_rows

    def check(self, feed: Mapping[str, NDArray[Any]]) -> tuple[Arrays, int, ShapeKey]:
        """Check one request.

        Returns:
            Its arrays in the signature's order, its rows, and what must be equal for requests to share a batch.

        Raises:
            InputError: a feed is missing, unknown, or of the wrong dtype or shape; names the variable.
        """
        if len(feed) != len(self._wanted):
            self._refuse_names(feed)
        arrays: Arrays = []
        rows = -1
        for name, dtype, shape in self._wanted:
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
            f"feed {name!r} has shape {list(array.shape)}: with what is looked up for it, the request takes "
            f"{sum(sizes)} bytes; {self._max_bytes} are the limit",
            hint="send several smaller requests",
            variable=name,
        )

    def not_finite(self, arrays: Sequence[NDArray[Any]]) -> InputError | None:
        """Name the first array with a NaN or an infinity in it."""
        for name, array in zip(self.names, arrays, strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                return InputError(f"feed {name!r}: row {row} holds a NaN or an infinity", variable=name)
        return None

    def _first_rows(self, name: str, count: int) -> int:
        if not 0 < count <= self._max_rows:
            raise InputError(
                f"feed {name!r} has {count} rows; a request has 1 to {self._max_rows}",
                hint="send several smaller requests",
                variable=name,
            )
        return count

    def _refuse_names(self, feed: Mapping[str, Any]) -> NoReturn:
        for name in self.names:
            if name not in feed:
                raise InputError(f"feed {name!r} is missing", hint=f"this model takes {self.names}", variable=name)
        unknown = sorted(feed.keys() - set(self.names))
        raise InputError(f"feed {unknown[0]!r} is unknown", hint=f"this model takes {self.names}", variable=unknown[0])


def _refuse_rows(name: str, count: int, rows: int) -> int:
    raise InputError(f"feed {name!r} has {count} rows, others have {rows}", variable=name)


def _cast(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert where no meaning is lost: integers to wider ones or to floats, floats to other floats."""
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
