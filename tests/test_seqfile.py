from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cloudedge import seqfile
from cloudedge.errors import Conflict, InputError
from tests.cube.reference import KEY3, RECORDS, SYNC, sequence_bytes, sequence_records

HEADER = 96


def put(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)  # a truncated file is flushed by some file systems, a new one is not
    path.write_bytes(data)
    return path


@pytest.mark.rules
def test_the_published_vector_is_written_byte_for_byte(tmp_path):
    seqfile.write(tmp_path / "s", RECORDS, sync=SYNC)
    data = (tmp_path / "s").read_bytes()
    assert len(data) == 168
    digest = "60fff9f87d6c8a8710a42f8f762289b919f02ea1ef9949f1fe37fc810cb9f0da"
    assert hashlib.sha256(data).hexdigest() == digest
    assert data == sequence_bytes(RECORDS)
    assert list(seqfile.read(tmp_path / "s")) == RECORDS


@pytest.mark.rules
def test_the_first_marker_follows_record_42_of_48_bytes(tmp_path):
    records = [(i, bytes(40)) for i in range(100)]
    seqfile.write(tmp_path / "s", records, sync=SYNC)
    data = (tmp_path / "s").read_bytes()
    mark = b"\xff\xff\xff\xff" + SYNC
    assert data.index(mark, HEADER) == HEADER + 42 * 56
    assert data == sequence_bytes(records)
    assert list(seqfile.read(tmp_path / "s")) == records


@pytest.mark.rules
def test_a_file_may_end_right_after_a_marker(tmp_path):
    data = sequence_bytes([(1, bytes(1992))])
    assert data.endswith(SYNC)
    assert list(seqfile.read(put(tmp_path / "s", data))) == [(1, bytes(1992))]


@pytest.mark.rules
@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 70_000])
def test_values_of_many_lengths_and_the_extreme_keys_come_back(tmp_path, size):
    records = [(0, bytes(size)), (2**64 - 1, b"\xff" * size), (KEY3, bytes(range(size % 256)))]
    seqfile.write(tmp_path / "s", records, sync=SYNC)
    data = (tmp_path / "s").read_bytes()
    assert sequence_records(data) == records
    assert list(seqfile.read(tmp_path / "s")) == records


@pytest.mark.rules
def test_records_that_cross_the_buffer_come_back(tmp_path):
    draw = random.Random(3)
    records = [(draw.getrandbits(64), draw.randbytes(draw.choice([0, 7, 300_000, 3]))) for _ in range(60)]
    seqfile.write(tmp_path / "s", records)
    assert list(seqfile.read(tmp_path / "s")) == records


@pytest.mark.rules
def test_a_table_comes_back_as_arrays(tmp_path):
    keys = np.array([3, 2**64 - 1, 0], np.uint64)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    with seqfile.Writer(tmp_path / "s", sync=SYNC) as out:
        out.append_rows(keys, values)
    assert sequence_records((tmp_path / "s").read_bytes()) == [
        (int(k), v.tobytes()) for k, v in zip(keys, values, strict=True)
    ]
    table = seqfile.read_table(tmp_path / "s")
    assert (table.keys == keys).all()
    assert (table.values.view(np.float32) == values).all()


@pytest.mark.rules
def test_an_empty_file_is_an_empty_table(tmp_path):
    seqfile.write(tmp_path / "s", [])
    table = seqfile.read_table(tmp_path / "s")
    assert table.keys.shape == (0,)
    assert table.values.shape == (0, 0)


@pytest.mark.rules
def test_a_table_of_mixed_lengths_is_refused_at_its_record(tmp_path):
    put(tmp_path / "s", sequence_bytes([(1, b"1234"), (2, b"123")]))
    with pytest.raises(InputError, match="key 2 has a value of 3 bytes, those before it have 4") as caught:
        seqfile.read_table(tmp_path / "s")
    assert caught.value.offset == HEADER + 20


HEADER_FAULTS = {
    "magic": (0, b"X", 0),
    "version": (3, b"\x05", 3),
    "key class length": (4, b"\x21", 4),
    "key class": (10, b"X", 4),
    "value class": (50, b"X", 39),
    "compressed": (74, b"\x01", 74),
    "block compressed": (75, b"\x01", 75),
    "metadata": (79, b"\x01", 76),
}


@pytest.mark.rules
@pytest.mark.parametrize(("at", "byte", "offset"), HEADER_FAULTS.values(), ids=HEADER_FAULTS)
@pytest.mark.parametrize("skip_damage", [False, True])
def test_a_wrong_header_is_refused_where_it_is_wrong(tmp_path, at, byte, offset, skip_damage):
    data = bytearray(sequence_bytes(RECORDS))
    data[at : at + 1] = byte
    with pytest.raises(InputError) as caught:
        seqfile.Reader(put(tmp_path / "s", bytes(data)), skip_damage=skip_damage)
    assert (caught.value.path, caught.value.offset) == (str(tmp_path / "s"), offset)


@pytest.mark.rules
def test_a_hadoop_file_is_refused_with_the_reason(tmp_path):
    inner = b"\0\0\0\x08" + bytes(8)
    data = sequence_bytes([]) + (12 + 4).to_bytes(4, "big") + (12).to_bytes(4, "big") + inner + bytes(4)
    with pytest.raises(InputError, match="key length 12 instead of 8; files made by Hadoop"):
        list(seqfile.read(put(tmp_path / "s", data)))


@pytest.mark.rules
def test_truncation_at_every_byte_is_refused_or_a_clean_end(tmp_path):
    records = [(i, bytes([i]) * 500) for i in range(5)]
    data = sequence_bytes(records)
    path = tmp_path / "s"
    clean, places = 0, []
    for size in range(len(data)):
        put(path, data[:size])
        try:
            found = list(seqfile.read(path))
        except InputError as error:
            places.append((size, error.path, error.offset))
        else:
            assert found == records[: len(found)]
            clean += 1
    assert all(path_ == str(path) and 0 <= offset <= size for size, path_, offset in places)
    assert clean == 6  # after the header, each record but the last, and around the marker


@pytest.mark.rules
def test_flipped_bits_never_change_more_than_a_key_or_a_value(tmp_path):
    records = [(i * 7, bytes([i]) * 30) for i in range(6)]
    data = sequence_bytes(records)
    path = tmp_path / "s"
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        put(path, bytes(flipped))
        try:
            found = list(seqfile.read(path))
        except InputError:
            continue
        assert [len(value) for _, value in found] == [30] * 6
        assert sum(a != b for a, b in zip(found, records, strict=True)) <= 1


@pytest.mark.rules
def test_damage_is_skipped_up_to_the_next_marker_and_counted(tmp_path):
    records = [(i, bytes([i % 256]) * 992) for i in range(12)]  # a marker after every second record
    data = bytearray(sequence_bytes(records))
    second_pair = data.index(b"\xff\xff\xff\xff" + SYNC) + 20
    data[second_pair + 4] = 1  # the third record's key length
    path = put(tmp_path / "s", bytes(data))
    with pytest.raises(InputError) as caught:
        list(seqfile.read(path))
    assert caught.value.offset == second_pair
    reader = seqfile.Reader(path, skip_damage=True)
    assert list(reader) == records[:2] + records[4:]
    assert reader.skipped_places == 1
    assert reader.skipped_bytes == 2 * 1008 + 20


@pytest.mark.rules
def test_a_truncated_end_is_skipped_when_asked(tmp_path):
    records = [(i, bytes(992)) for i in range(5)]
    data = sequence_bytes(records)
    path = put(tmp_path / "s", data[:-100])
    reader = seqfile.Reader(path, skip_damage=True)
    assert list(reader) == records[:4]
    assert reader.skipped_bytes == 1008 - 100


@pytest.mark.rules
def test_a_mark_with_another_sync_is_refused_or_skipped(tmp_path):
    records = [(i, bytes(992)) for i in range(6)]
    data = bytearray(sequence_bytes(records))
    mark = data.index(b"\xff\xff\xff\xff" + SYNC)
    data[mark + 4] ^= 1
    path = put(tmp_path / "s", bytes(data))
    with pytest.raises(InputError, match="sync mark differs") as caught:
        list(seqfile.read(path))
    assert caught.value.offset == mark
    assert list(seqfile.read(path, skip_damage=True)) == records[:2] + records[4:]


@pytest.mark.rules
def test_an_existing_file_is_not_written_over(tmp_path):
    put(tmp_path / "s", b"mine")
    with pytest.raises(Conflict):
        seqfile.Writer(tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == b"mine"


@pytest.mark.rules
def test_a_block_that_fails_leaves_nothing(tmp_path):
    def fails():
        with seqfile.Writer(tmp_path / "s") as out:
            out.append(1, b"x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rules
@pytest.mark.parametrize("key", [-1, 2**64])
def test_keys_outside_64_bits_are_refused(tmp_path, key):
    with pytest.raises(InputError, match="not within"), seqfile.Writer(tmp_path / "s") as out:
        out.append(key, b"")


@pytest.mark.rules
def test_a_missing_file_and_a_directory_say_so(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        seqfile.Reader(tmp_path / "nothing")
    with pytest.raises(InputError, match="directory"):
        seqfile.Reader(tmp_path)


@pytest.mark.parts
def test_reading_takes_little_memory_whatever_the_file(tmp_path):
    keys = np.arange(400_000, dtype=np.uint64)
    with seqfile.Writer(tmp_path / "s") as out:
        out.append_rows(keys, np.zeros((len(keys), 128), np.uint8))
    program = (
        "import sys; from cloudedge import seqfile\n"
        # not ru_maxrss, which a process inherits from the one that started it
        "def peak(): return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "next(seqfile.read(sys.argv[1]))\n"
        "before = peak()\n"
        "count = sum(1 for _ in seqfile.read(sys.argv[1]))\n"
        "print(count, peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "s"], capture_output=True, text=True, check=True, timeout=60
    )
    count, grown_kb = map(int, done.stdout.split())
    assert count == len(keys)
    assert grown_kb < 10_000  # the file has 58 MB
