from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from cloudedge import _core
from cloudedge.cube import PartStore, build
from cloudedge.errors import InputError, IntegrityError
from tests.cube.reference import DELTA, KEY3, RECORDS, load_part, part_files, sequence_bytes, shard_of, write_part

pytestmark = pytest.mark.rules

ABSENT = [3, 10**18, 2**64 - 2]


@pytest.fixture(params=[False, True], ids=["memory", "mapped"])
def mapped(request) -> bool:
    return request.param


def checksum_of(rows: dict[int, bytes]) -> str:
    low = high = 0
    for key, value in rows.items():
        sums = _core.checksum(np.array([key], np.uint64), [np.frombuffer(value, np.uint8).reshape(1, -1)])
        low, high = (low + sums[0]) % 2**64, (high + sums[1]) % 2**64
    return f"{high:016x}{low:016x}"


def same_rows(store: PartStore, rows: dict[int, bytes]) -> None:
    keys = [*rows, *ABSENT]
    random.Random(1).shuffle(keys)
    assert store.get(np.array(keys, np.uint64)) == [rows.get(key) for key in keys]
    assert len(store) == len(rows)
    assert store.checksum == checksum_of(rows)


def test_the_published_part_is_looked_up(tmp_path, mapped):
    part = write_part(tmp_path / "p", part_files(shard_of(RECORDS, 1, 2)))
    store = PartStore.open(part, mapped=mapped, shard=(1, 2))
    values, found = store.lookup([KEY3, 2, 1])
    assert values.tolist() == [[3.0, -1.5], [0.0, 0.0], [1.0, 2.0]]
    assert found.tolist() == [True, False, True]
    assert (store.name, store.width, len(store)) == ("p", 8, 2)
    same_rows(store, dict(shard_of(RECORDS, 1, 2)))


SIZES = {
    "one length": [36],
    "empty values": [0],
    "many lengths": [0, 1, 4, 36, 1023, 1024],
    "two lengths that look like one": [4, 8],
    "some too long": [8, 1025, 2000],
    "all too long": [2000],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("limit", [1 << 30, 3000])
@pytest.mark.parametrize("duplicates", [False, True])
def test_a_corpus_agrees_with_the_plain_reader(tmp_path, mapped, sizes, limit, duplicates):
    draw = random.Random(4)
    keys = [0, 2**64 - 1, 2**63] + [draw.getrandbits(64) for _ in range(400)]
    keys += draw.choices(keys, k=300) if duplicates else []
    records = [(key, draw.randbytes(sizes[i % len(sizes)])) for i, key in enumerate(keys)]
    part = write_part(tmp_path / "p", part_files(records, limit))
    rows = load_part(part)
    store = PartStore.open(part, mapped=mapped)
    same_rows(store, rows)
    last = dict(records)
    assert store.long_values == sum(len(value) > 1024 for value in last.values())
    assert store.duplicates == len(records) - len(last)
    delivered = {size for size in sizes if size <= 1024}
    assert store.width == (delivered.pop() if len(delivered) == 1 else None)


def test_more_rows_than_one_batch_are_all_found(tmp_path, mapped):
    n = 50_000
    keys = np.random.default_rng(3).permutation(np.arange(0, 7 * n, 7, dtype=np.uint64))
    values = np.random.default_rng(4).normal(size=(n, 9)).astype(np.float32)
    records = [(int(k), v.tobytes()) for k, v in zip(keys, values, strict=True)]
    store = PartStore.open(write_part(tmp_path / "p", part_files(records)), mapped=mapped)
    found_values, found = store.lookup(keys)
    assert found.all()
    assert (found_values == values).all()
    _, found = store.lookup(keys + np.uint64(1))
    assert not found.any()
    assert store.checksum == "{:016x}{:016x}".format(
        *reversed(_core.checksum(keys[np.argsort(keys)], [values[np.argsort(keys)].view(np.uint8)]))
    )


def test_a_part_without_rows_finds_nothing(tmp_path, mapped):
    files = {"index.n": struct.pack("<III", 0, 0, 0), "data.n": struct.pack("<I", 0)}
    store = PartStore.open(write_part(tmp_path / "p", files), mapped=mapped)
    assert len(store) == 0
    values, found = store.lookup([1, 2])
    assert values.shape == (2, 0)
    assert not found.any()
    assert store.get([]) == []


def test_values_of_mixed_lengths_make_no_array(tmp_path):
    store = PartStore.open(write_part(tmp_path / "p", part_files([(1, b"1234"), (2, b"12345678")])))
    with pytest.raises(InputError, match="4 to 8 bytes"):
        store.lookup([1])
    odd = PartStore.open(write_part(tmp_path / "q", part_files([(1, b"12345")])))
    with pytest.raises(InputError, match="5 bytes are not whole elements of float32"):
        odd.lookup([1])
    assert odd.lookup([1], dtype=np.uint8)[0].tobytes() == b"12345"


def test_signed_ids_are_their_two_s_complement(tmp_path):
    store = PartStore.open(write_part(tmp_path / "p", part_files([(2**64 - 5, b"1234")])))
    assert store.get(np.array([-5, 5], np.int64)) == [b"1234", None]
    with pytest.raises(InputError, match="keys are a list of integers"):
        store.get(np.array([1.5]))


def test_keys_of_another_shard_are_refused(tmp_path, mapped):
    part = write_part(tmp_path / "p", part_files(RECORDS))
    with pytest.raises(InputError, match="key 2 belongs to shard 0 of 2, not to shard 1") as caught:
        PartStore.open(part, mapped=mapped, shard=(1, 2))
    assert (caught.value.path, caught.value.offset) == (str(part / "index.0"), 16)


def test_another_checksum_is_refused(tmp_path, mapped):
    part = write_part(tmp_path / "p", part_files(RECORDS))
    right = checksum_of(dict(RECORDS))
    assert PartStore.open(part, mapped=mapped, checksum=right).checksum == right
    with pytest.raises(IntegrityError, match="expected checksum"):
        PartStore.open(part, mapped=mapped, checksum=right[:-1] + ("0" if right[-1] != "0" else "1"))
    with pytest.raises(InputError, match="32 hexadecimal digits"):
        PartStore.open(part, mapped=mapped, checksum="abc")


def test_a_directory_that_is_no_part_says_what_to_open(tmp_path):
    write_part(tmp_path / "v" / "d_part0", part_files(RECORDS))
    with pytest.raises(InputError, match=r"no index\.n") as caught:
        PartStore.open(tmp_path / "v")
    assert "d_part0" in caught.value.hint


def damaged(part: Path, name: str, content: bytes) -> None:
    (part / name).unlink(missing_ok=True)
    (part / name).write_bytes(content)


def small_part(path: Path) -> tuple[Path, dict[str, bytes], dict[int, bytes]]:
    records = [(0, b"12345678"), (7, b"abcdefgh"), (2**64 - 1, b""), (7, b"ABCDEFGH"), (9, b"xyz")]
    files = part_files(records, limit=28)
    return write_part(path, files), files, dict(records)


def test_truncation_at_every_byte_of_every_file_is_refused(tmp_path, mapped):
    part, files, _ = small_part(tmp_path / "p")
    assert len(files) >= 5
    for name, content in files.items():
        for size in range(len(content)):
            damaged(part, name, content[:size])
            with pytest.raises(IntegrityError) as caught:
                PartStore.open(part, mapped=mapped)
            assert Path(caught.value.path).parent == part
            assert caught.value.offset is not None
        damaged(part, name, content + b"\0")
        with pytest.raises(IntegrityError):
            PartStore.open(part, mapped=mapped)
        (part / name).unlink()
        with pytest.raises(InputError):
            PartStore.open(part, mapped=mapped)
        damaged(part, name, content)


def test_every_flipped_bit_is_refused_or_changes_nothing(tmp_path, mapped):
    part, files, rows = small_part(tmp_path / "p")
    right = checksum_of(rows)
    seen_by_structure = 0
    total = 0
    for name, content in files.items():
        for bit in range(len(content) * 8):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            damaged(part, name, bytes(flipped))
            total += 1
            try:
                PartStore.open(part, mapped=mapped)
            except (IntegrityError, InputError):
                seen_by_structure += 1
            try:
                store = PartStore.open(part, mapped=mapped, checksum=right)
            except (IntegrityError, InputError):
                continue
            same_rows(store, rows)
        damaged(part, name, content)
    # Addresses, lengths and lists show their damage by themselves; keys, values and the unused type need the checksum.
    silent = 5 * 64 + (8 + 8 + 8 + 3) * 8 + 32
    assert seen_by_structure >= total - silent


def test_the_damage_is_named_with_file_and_offset(tmp_path):
    part, files, _ = small_part(tmp_path / "p")
    index = bytearray(files["index.0"])
    index[16 + 8] ^= 4
    damaged(part, "index.0", bytes(index))
    with pytest.raises(
        IntegrityError, match=r"points to data\.0 offset 8, its record starts at data\.0 offset 12"
    ) as caught:
        PartStore.open(part)
    assert (caught.value.path, caught.value.offset) == (str(part / "index.0"), 24)


def base_and_delta(tmp_path: Path) -> tuple[Path, Path]:
    for name, records in (("base", RECORDS), ("delta", DELTA)):
        (tmp_path / name).write_bytes(sequence_bytes(records))
    out = tmp_path / "out"
    build([tmp_path / "base"], output=out, table="d", shards=2, version=100, tar=False)
    build([tmp_path / "delta"], output=out, table="d", shards=2, version=101, base=100, tar=False)
    return out / "100_100", out / "100_101"


def test_a_cumulative_delta_goes_on_top_with_or_without_its_base_s_files(tmp_path, mapped):
    base, delta = base_and_delta(tmp_path)
    rows = {**dict(shard_of(RECORDS, 1, 2)), **dict(DELTA)}
    store = PartStore.open(base / "d_part1", mapped=mapped)
    same_rows(store.apply_directory(delta / "d_part1"), rows)
    for name in ("index.0", "data.0"):
        shutil.copy(base / "d_part1" / name, delta / "d_part1" / name)
    patched = store.apply_directory(delta / "d_part1", name="100_101")
    same_rows(patched, rows)
    assert patched.name == "100_101"
    same_rows(PartStore.open(delta / "d_part1", mapped=mapped), rows)
    same_rows(store, dict(shard_of(RECORDS, 1, 2)))


def test_an_empty_cumulative_delta_changes_nothing_but_the_name(tmp_path):
    base, delta = base_and_delta(tmp_path)
    store = PartStore.open(base / "d_part0")
    patched = store.apply_directory(delta / "d_part0", name="new")
    assert patched.name == "new"
    same_rows(patched, dict(shard_of(RECORDS, 0, 2)))


def test_a_stand_alone_delta_with_lists_like_its_base_s_is_not_ignored(tmp_path):
    """Upstream's servers compare lengths only, and silently keep the old rows."""
    store = PartStore.open(write_part(tmp_path / "base", part_files([(1, b"12345678"), (2, b"abcdefgh")])))
    patch = write_part(tmp_path / "patch", part_files([(2, b"ABCDEFGH"), (3, b"87654321")]))
    same_rows(store.apply_directory(patch), {1: b"12345678", 2: b"ABCDEFGH", 3: b"87654321"})


def test_a_damaged_delta_leaves_the_base_as_it_is(tmp_path):
    base, delta = base_and_delta(tmp_path)
    store = PartStore.open(base / "d_part1")
    content = (delta / "d_part1" / "data.1").read_bytes()
    damaged(delta / "d_part1", "data.1", content[:-1])
    with pytest.raises(IntegrityError, match=r"23 bytes, data\.n says 24"):
        store.apply_directory(delta / "d_part1")
    same_rows(store, dict(shard_of(RECORDS, 1, 2)))


def test_a_delta_with_values_too_long_is_refused(tmp_path):
    store = PartStore.open(write_part(tmp_path / "base", part_files([(1, b"1234")])))
    patch = write_part(tmp_path / "patch", part_files([(1, bytes(1025))]))
    with pytest.raises(InputError, match="more than 1024 bytes"):
        store.apply_directory(patch)


def table(tmp_path: Path, n: int, *, mapped: bool) -> tuple[PartStore, dict[int, bytes]]:
    draw = random.Random(n)
    rows = {draw.getrandbits(64): draw.randbytes(36) for _ in range(n)}
    return PartStore.open(write_part(tmp_path / "p", part_files(list(rows.items()))), mapped=mapped), rows


def applied(store: PartStore, rows: dict[int, bytes], changed: dict[int, bytes], removed: list[int], name: str):
    width = len(next(iter(changed.values()))) if changed else 0
    values = np.frombuffer(b"".join(changed.values()), np.uint8).reshape(len(changed), width)
    keys = np.array(list(changed), np.uint64)
    result = store.apply(keys, values, removed=np.array(removed, np.uint64), name=name, base_checksum=store.checksum)
    return result, {key: value for key, value in {**rows, **changed}.items() if key not in set(removed)}


def test_a_row_delta_shares_the_base_and_takes_its_own_size_only(tmp_path, mapped):
    store, rows = table(tmp_path, 30_000, mapped=mapped)
    keys = list(rows)
    changed = {key: bytes(36) for key in keys[:200]} | {key + 1: b"n" * 36 for key in keys[200:300]}
    result, expected = applied(store, rows, changed, keys[5000:5050], "v2")
    same_rows(result, expected)
    same_rows(store, rows)
    plain = PartStore.open(tmp_path / "p")
    assert result.memory_bytes <= 0.05 * plain.memory_bytes


def test_deltas_on_deltas_stay_right_and_shallow(tmp_path, mapped):
    store, rows = table(tmp_path, 2000, mapped=mapped)
    draw = random.Random(6)
    history = [(store, rows)]
    for step in range(40):
        store, rows = history[-1]
        keys = list(rows)
        removed = draw.sample(keys, 5)
        gone = set(removed)
        changed = {key: draw.randbytes(36) for key in draw.sample(keys, 30) if key not in gone}
        changed |= {draw.getrandbits(64): draw.randbytes(36) for _ in range(5)}
        everyone = set().union(*(r for _, r in history))
        back = [key for key in draw.sample(sorted(everyone), 5) if key not in rows]
        changed |= {key: draw.randbytes(36) for key in back}
        history.append(applied(store, rows, changed, removed, f"v{step}"))
    for store, rows in history[::5] + history[-2:]:
        same_rows(store, rows)
        assert store.width == 36


def test_a_delta_that_outgrows_its_base_becomes_a_table(tmp_path, mapped):
    store, rows = table(tmp_path, 400, mapped=mapped)
    changed = dict.fromkeys(list(rows)[:300], b"y" * 36)
    result, expected = applied(store, rows, changed, list(rows)[300:310], "v2")
    same_rows(result, expected)
    assert result.memory_bytes > 380 * 44  # all rows, not only those of the delta


def test_a_delta_of_another_width_is_kept_as_it_is(tmp_path):
    store, rows = table(tmp_path, 1000, mapped=False)
    result, expected = applied(store, rows, {1: b"12", 2: b"34"}, [], "v2")
    same_rows(result, expected)
    assert result.width is None
    again, expected = applied(result, expected, {3: b"wider"}, [1], "v3")
    same_rows(again, expected)


BAD_DELTAS = {
    "wrong base": ({"base_checksum": "0" * 32}, "for other rows than those of version"),
    "removes what is not there": ({"removed": [4]}, "removes key 4, which its base does not have"),
    "removes what it changes": ({"removed": [1]}, "removes key 1, which it also changes"),
    "too long": ({"values": np.zeros((1, 1025), np.uint8)}, "values of 1025 bytes"),
}


@pytest.mark.parametrize(("change", "message"), BAD_DELTAS.values(), ids=BAD_DELTAS)
def test_a_delta_that_does_not_fit_is_refused(tmp_path, change, message):
    store = PartStore.open(write_part(tmp_path / "p", part_files(RECORDS)))
    arguments = {"keys": [1], "values": np.ones((1, 2), np.float32), "name": "v2"} | change
    with pytest.raises(InputError, match=message):
        store.apply(**arguments)


def test_only_removals_and_no_change_at_all(tmp_path):
    store, rows = table(tmp_path, 100, mapped=False)
    result, expected = applied(store, rows, {}, list(rows)[:3], "v2")
    same_rows(result, expected)
    same, unchanged = applied(result, expected, {}, [], "v3")
    same_rows(same, unchanged)
    assert same.checksum == result.checksum
