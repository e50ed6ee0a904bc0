"""Cube's file formats in the plainest Python, written from their description alone, to compare the real one with."""

from __future__ import annotations

import struct
from pathlib import Path

NAME = b"org.apache.hadoop.io.BytesWritable"
Record = tuple[int, bytes]

SYNC = bytes(range(0x10, 0x20))
KEY3 = 0x0102030405060709
RECORDS: list[Record] = [
    (1, struct.pack("<2f", 1.0, 2.0)),
    (2, struct.pack("<2f", 0.5, -0.25)),
    (KEY3, struct.pack("<2f", 3.0, -1.5)),
]
DELTA: list[Record] = [(1, struct.pack("<2f", 9, 9)), (5, struct.pack("<2f", 7, 7))]


def sequence_bytes(records: list[Record], sync: bytes = SYNC) -> bytes:
    out = [b"SEQ\x06", bytes([34]), NAME, bytes([34]), NAME, b"\0\0", b"\0\0\0\0", sync]
    since = 0
    for key, value in records:
        out += [struct.pack(">II", 8 + len(value), 8), struct.pack("<Q", key), value]
        since += 8 + len(value)
        if since >= 2000:
            out += [b"\xff\xff\xff\xff", sync]
            since = 0
    return b"".join(out)


def sequence_records(data: bytes) -> list[Record]:
    assert data[:4] == b"SEQ\x06"
    assert data[4:74] == (bytes([34]) + NAME) * 2
    assert data[74:80] == bytes(6)
    sync, at, records = data[80:96], 96, []
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if length == 0xFFFFFFFF:
            assert data[at + 4 : at + 20] == sync
            at += 20
            continue
        assert struct.unpack_from(">I", data, at + 4) == (8,)
        (key,) = struct.unpack_from("<Q", data, at + 8)
        records.append((key, data[at + 16 : at + 8 + length]))
        assert len(records[-1][1]) == length - 8
        at += 8 + length
    return records


def part_files(records: list[Record], limit: int = 2**30) -> dict[str, bytes]:
    """The files of one part of a base build."""
    data, index = [b""], []
    for key, value in records:
        record = struct.pack("<I", len(value) + 4) + value
        if len(data[-1]) + len(record) > limit:
            data.append(b"")
        index.append(struct.pack("<QQ", key, ((len(data) - 1) << 32) + len(data[-1])))
        data[-1] += record
    files = {f"data.{j}": block for j, block in enumerate(data)}
    files["index.0"] = b"".join(index)
    files["index.n"] = struct.pack("<IIIQ", 0, len(records), 1, 16 * len(records))
    files["data.n"] = struct.pack(f"<I{len(data)}I", len(data), *(len(block) for block in data))
    return files


def shard_of(records: list[Record], shard: int, shards: int) -> list[Record]:
    return [(key, value) for key, value in records if key % shards == shard]


def load_part(directory: Path) -> dict[int, bytes]:
    """What a server finds: later entries win, values above 1024 bytes are not delivered."""
    index_list = (directory / "index.n").read_bytes()
    _, total, files = struct.unpack_from("<III", index_list)
    lengths = struct.unpack_from(f"<{files}Q", index_list, 12)
    addresses: dict[int, int] = {}
    count = 0
    for number, length in enumerate(lengths):
        entries = (directory / f"index.{number}").read_bytes()
        assert len(entries) == length
        for key, address in struct.iter_unpack("<QQ", entries):
            addresses[key] = address
            count += 1
    assert count == total
    data_list = (directory / "data.n").read_bytes()
    (blocks,) = struct.unpack_from("<I", data_list)
    sizes = struct.unpack_from(f"<{blocks}I", data_list, 4)
    data = [(directory / f"data.{number}").read_bytes() for number in range(blocks)]
    assert [len(block) for block in data] == list(sizes)
    found = {}
    for key, address in addresses.items():
        block, offset = data[address >> 32], address & 0xFFFFFFFF
        (record,) = struct.unpack_from("<I", block, offset)
        value = block[offset + 4 : offset + record]
        assert len(value) == record - 4
        if len(value) <= 1024:
            found[key] = value
    return found


def write_part(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def write_sequence(path: Path, records: list[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sequence_bytes(records))
    return path


def files_of(part: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in part.iterdir()}
