"""How a server makes a version of a part's files: upstream's index and data files, read into memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cloudedge import _core
from cloudedge.errors import InputError

__all__ = ["load_patch", "load_version"]


def load_version(path: str, name: str) -> _core.Version:
    """Read ``index.*`` and ``data.*`` under a path.

    Raises:
        InputError: there is no such part, or its files do not fit together.
    """
    part = Path(path)
    try:
        index = np.fromfile(part / "index.0", np.dtype("<u8")).reshape(-1, 2)
        data = np.fromfile(part / "data.0", np.uint8)
        widths = {int(data[at : at + 4].view("<u4")[0]) - 4 for at in index[:, 1].tolist()}
        width = max(widths, default=0)
        if len(widths) > 1:
            raise ValueError("values differ in width")  # noqa: TRY301 - one message for all that can be wrong
        rows = data[(index[:, 1, None] + np.arange(4, 4 + width, dtype=np.uint64)).astype(np.int64)]
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"cannot load version {name!r} from {path}: {error}") from error
    return _core.memory_version(name, np.ascontiguousarray(index[:, 0]), rows)


def load_patch(base: _core.Version, path: str, name: str) -> _core.Version:
    """Read a delta's files on top of a version."""
    raise InputError(f"cannot load version {name!r} from {path}: deltas on {base.name!r} are not read yet")
