"""Types of the compiled half; the sources are in native/."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
Columns: TypeAlias = Sequence[NDArray[np.uint8]]

def checksum(keys: Keys, columns: Columns) -> tuple[int, int]: ...
def first_disorder(keys: Keys, before: int = 0, has_before: bool = False) -> int: ...
def diff(
    before_keys: Keys, before_columns: Columns, after_keys: Keys, after_columns: Columns
) -> tuple[Keys, Keys, Keys]: ...
def to_planes(rows: NDArray[np.uint8], planes: NDArray[np.uint8]) -> None: ...
def from_planes(planes: NDArray[np.uint8], rows: NDArray[np.uint8]) -> None: ...
def merged_size(base: Keys, keys: Keys, removed: Keys) -> int: ...
def merge(
    base_keys: Keys,
    base_columns: Columns,
    keys: Keys,
    columns: Columns,
    removed: Keys,
    out_keys: Keys | None,
    out_columns: Columns,
) -> None: ...
