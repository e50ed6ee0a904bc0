"""The delta file of a table: new and changed rows and removed keys, in compressed blocks.

A delta is a safetensors file of two arrays. ``frames`` holds two zstd frames for each block of up to 65,536 rows: its
rows and its removed keys. ``blocks`` (uint64, four per block) holds the numbers of rows, bytes, removed keys, bytes.
Inside a frame, keys are written as differences, and every column by planes (all first bytes, all second bytes, ...),
so that the few bytes with a float's sign and exponent, or a key's high bits, compress away. Blocks are read one at a
time: memory does not depend on the delta's size.

The metadata names the rows before and after: ``base``, ``result`` (checksums) and ``rows``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from cloudedge import _core
from cloudedge.bundle.tables._rows import ROWS_PER_WINDOW, Delta, Rows, RowType
from cloudedge.bundle.tables._safetensors import ArraySpec, SafetensorsFile, header_bytes
from cloudedge.errors import IntegrityError

__all__ = ["DeltaFile", "DeltaWriter"]

_ZSTD_LEVEL = 3  # entropy coding does all the work on planes; higher levels gain under 0.5 %
_BASE, _RESULT, _ROWS = "cloudedge.base", "cloudedge.result", "cloudedge.rows"
_U8, _U64 = np.dtype("u1"), np.dtype("<u8")


class DeltaWriter:
    """Collects the windows of a difference and writes them as one delta file."""

    def __init__(self, folder: Path) -> None:
        self._frames = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._blocks: list[tuple[int, int, int, int]] = []
        self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)

    def __enter__(self) -> DeltaWriter:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.close()

    @property
    def size(self) -> int:
        """Bytes collected so far."""
        return self._frames.tell() + 32 * len(self._blocks)

    def add(self, window: Delta) -> None:
        """Add one window's changes."""
        for start in range(0, max(len(window.rows), len(window.removed)), ROWS_PER_WINDOW):
            some = slice(start, start + ROWS_PER_WINDOW)
            keys, gone = window.rows.keys[some], window.removed[some]
            rows = self._pack([_differences(keys), *(column[some] for column in window.rows.columns)])
            removed = self._pack([_differences(gone)])
            self._frames.write(rows)
            self._frames.write(removed)
            self._blocks.append((len(keys), len(rows), len(gone), len(removed)))

    def _pack(self, columns: list[NDArray[np.uint8]]) -> bytes:
        if not len(columns[0]):
            return b""
        planes = [np.empty(column.shape[::-1], np.uint8) for column in columns]
        for column, plane in zip(columns, planes, strict=True):
            _core.to_planes(np.ascontiguousarray(column), plane)
        return self._compressor.compress(b"".join(plane.tobytes() for plane in planes))

    def write(self, path: Path, *, base: str, result: str, result_rows: int) -> None:
        """Write the delta file from the rows `base` to the `result_rows` rows `result`."""
        blocks = np.array(self._blocks, _U64).reshape(-1, 4)
        arrays = {"blocks": ArraySpec(_U64, blocks.shape), "frames": ArraySpec(_U8, (self._frames.tell(),))}
        self._frames.seek(0)
        with path.open("wb") as out:
            out.write(header_bytes(arrays, {_BASE: base, _RESULT: result, _ROWS: str(result_rows)}))
            out.write(blocks.tobytes())
            shutil.copyfileobj(self._frames, out)


class DeltaFile:
    """An open delta file."""

    def __init__(self, path: Path, kind: RowType) -> None:
        self.path = path
        self._kind = kind
        self._file = SafetensorsFile(path)
        arrays, notes = self._file.arrays, self._file.metadata
        blocks, frames = arrays.get("blocks"), arrays.get("frames")
        if (
            blocks is None
            or frames is None
            or (blocks.dtype, blocks.shape[1:], frames.dtype) != (_U64, (4,), _U8)
            or not notes.get(_ROWS, "").isdecimal()
        ):
            raise IntegrityError(f"{path} is not a delta")
        self.base = notes.get(_BASE, "")
        self.result = notes.get(_RESULT, "")
        self.result_rows = int(notes[_ROWS])
        self._blocks = self._file.read("blocks", 0, blocks.shape[0])
        sizes = self._blocks[:, (1, 3)]
        fits = not len(sizes) or int(sizes.max()) <= frames.shape[0]
        if not fits or int(sizes.sum()) != frames.shape[0] or (self._blocks[:, (0, 2)] > ROWS_PER_WINDOW).any():
            raise IntegrityError(f"{path}: its blocks do not add up")

    @property
    def count(self) -> int:
        """The number of new, changed and removed rows."""
        return int(self._blocks[:, (0, 2)].sum())

    def rows(self) -> Iterator[Rows]:
        """Read the new and changed rows, block by block."""
        widths = [spec.row_bytes for name, spec in self._kind.columns(0).items() if name != "keys"]
        for count, frame in self._frames_of(0):
            differences, *columns = self._unpack(frame, count, [8, *widths])
            yield Rows(np.cumsum(differences.view(_U64).reshape(-1), dtype=np.uint64), tuple(columns))

    def removed(self) -> Iterator[Rows]:
        """Read the removed keys, block by block."""
        for count, frame in self._frames_of(1):
            (differences,) = self._unpack(frame, count, [8])
            yield Rows(np.cumsum(differences.view(_U64).reshape(-1), dtype=np.uint64), ())

    def _frames_of(self, which: int) -> Iterator[tuple[int, bytes]]:
        at = 0
        for block in self._blocks.tolist():
            start = at + (block[1] if which else 0)
            at += block[1] + block[3]
            count, size = block[2 * which], block[2 * which + 1]
            if count:
                yield count, self._file.read("frames", start, start + size).tobytes()

    def _unpack(self, frame: bytes, count: int, widths: Iterable[int]) -> list[NDArray[np.uint8]]:
        total = count * sum(widths)
        try:
            # Check the size before allocating memory for it: a frame may claim any size.
            content = zstandard.frame_content_size(frame)
            raw = b"" if content != total else zstandard.ZstdDecompressor().decompress(frame, max_output_size=total)
        except zstandard.ZstdError as error:
            raise IntegrityError(f"{self.path}: a block of {count} rows does not decompress ({error})") from error
        if len(raw) != total:
            raise IntegrityError(f"{self.path}: a block of {count} rows holds {content} bytes, not {total}")
        columns, at = [], 0
        for width in widths:
            column = np.empty((count, width), np.uint8)
            planes = np.frombuffer(raw, np.uint8, count * width, at).reshape(width, count)
            _core.from_planes(planes, column)
            columns.append(column)
            at += count * width
        return columns


def _differences(keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return ascending keys as differences, the first one absolute, as rows of eight bytes."""
    return np.diff(keys, prepend=np.uint64(0)).reshape(-1, 1).view(np.uint8)
