"""Any bytes for the parsers that are in Python: read, or refused with one of cloudedge's errors, and nothing else.

fuzz_python.py SECONDS SEED CRASH_FILE CORPUS_DIRECTORY
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cloudedge.cube import CubeConf, ServerFlags, TransferConf, read_donefile
from cloudedge.cube.formats._build_layout import PartLists
from cloudedge.cube.formats._lodtensor import Parameter
from cloudedge.cube.formats._table_file import TableFile
from cloudedge.cube.formats._text import read_text
from cloudedge.errors import CloudEdgeError

PARSERS: dict[str, Callable[[Path], object]] = {
    "cube.conf": CubeConf.from_file,
    "donefile": read_donefile,
    "gflags.conf": ServerFlags.from_file,
    "meta": PartLists.read_meta,
    "parameter": Parameter.open,
    "table": TableFile.open,
    "text": lambda path: list(read_text(path)),
    "transfer.conf": TransferConf.from_file,
}
TOKENS = [b"-1", b"0", b"4294967296", b"18446744073709551616", b"1e400", b"null", b"[", b"{", b'"', b":", b"\xff"]


def mutated(data: bytes, others: list[bytes], draw: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(out) + 1)
        kind = draw.randrange(5)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del out[at : at + draw.randrange(12)]
        elif kind == 2:
            out[at:at] = draw.choice(TOKENS)
        elif kind == 3:
            del out[at:]
        else:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            out[at:at] = other[start : start + draw.randrange(64)]
    return bytes(out[:65536])


def main(seconds: int, seed: int, crash_file: Path, corpus: Path) -> None:
    draw = random.Random(seed)
    samples = {name: (corpus / name).read_bytes() for name in PARSERS}
    stop = time.monotonic() + seconds
    count = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        path = Path(scratch) / "input"
        while time.monotonic() < stop:
            name = draw.choice(list(PARSERS))
            data = mutated(samples[name], list(samples.values()), draw) if count else samples[name]
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            try:
                PARSERS[name](path)
            except CloudEdgeError:
                pass
            except BaseException:
                crash_file.write_bytes(data)
                sys.stderr.write(f"{name}: the input is in {crash_file}\n")
                raise
            count += 1
    sys.stdout.write(f"{count} inputs, none of them a problem\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
