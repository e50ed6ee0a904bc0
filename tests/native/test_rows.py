"""The row kernels against the plainest possible Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge import _core

pytestmark = pytest.mark.rules

KEY = st.one_of(st.integers(0, 60), st.integers(0, 2**64 - 1))
TABLE = st.dictionaries(KEY, st.binary(min_size=3, max_size=3), max_size=60)


def arrays(table: dict[int, bytes]) -> tuple[np.ndarray, list[np.ndarray]]:
    keys = np.array(sorted(table), np.uint64)
    values = np.frombuffer(b"".join(table[int(k)] for k in keys), np.uint8).reshape(len(keys), 3)
    return keys, [values[:, :2].copy(), values[:, 2:].copy()]


def as_dict(keys: np.ndarray, columns: list[np.ndarray]) -> dict[int, bytes]:
    return {int(k): b"".join(c[i].tobytes() for c in columns) for i, k in enumerate(keys)}


@given(TABLE, TABLE)
def test_diff_is_what_set_arithmetic_says(before, after):
    (ak, ac), (bk, bc) = arrays(before), arrays(after)
    added, changed, removed = _core.diff(ak, ac, bk, bc)
    assert bk[added].tolist() == sorted(set(after) - set(before))
    assert ak[removed].tolist() == sorted(set(before) - set(after))
    assert bk[changed].tolist() == sorted(k for k in set(before) & set(after) if before[k] != after[k])


@given(TABLE, TABLE)
def test_merging_the_difference_gives_the_other_table(before, after):
    (ak, ac), (bk, bc) = arrays(before), arrays(after)
    added, changed, removed = _core.diff(ak, ac, bk, bc)
    fresh = np.sort(np.concatenate([added, changed]))
    size = _core.merged_size(ak, bk[fresh], ak[removed])
    keys, columns = np.empty(size, np.uint64), [np.empty((size, c.shape[1]), np.uint8) for c in ac]
    _core.merge(ak, ac, bk[fresh], [c[fresh] for c in bc], ak[removed], keys, columns)
    assert as_dict(keys, columns) == after
    assert keys.tolist() == sorted(after)


@given(TABLE, st.integers(1, 5))
def test_checksum_does_not_depend_on_order_or_sharding(table, shards):
    keys, columns = arrays(table)
    whole = _core.checksum(keys, columns)
    low = high = 0
    for shard in range(shards):
        mine = keys % np.uint64(shards) == shard
        a, b = _core.checksum(keys[mine][::-1].copy(), [c[mine][::-1].copy() for c in columns])
        low, high = (low + a) % 2**64, (high + b) % 2**64
    assert (low, high) == whole


@given(TABLE, st.data())
def test_checksum_notices_any_flipped_bit(table, data):
    if not table:
        return
    keys, columns = arrays(table)
    before = _core.checksum(keys, columns)
    row = data.draw(st.integers(0, len(keys) - 1))
    bit = data.draw(st.integers(0, 7))
    columns[0][row, 1] ^= 1 << bit
    assert _core.checksum(keys, columns) != before


def checksum_by_the_book(table: dict[int, bytes]) -> tuple[int, int]:
    """The definition in docs/bundle.md, in plain Python."""
    s0, s1, s2, s3 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93
    mask = 2**64 - 1

    def mix(a: int, b: int) -> int:
        product = a * b
        return (product ^ (product >> 64) ^ (a + b)) & mask

    total = [0, 0]
    for key, data in table.items():
        state = mix(key ^ s0, s1)
        for at in range(0, len(data), 16):
            block = data[at : at + 16]
            first, second = int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")
            short = len(block) if len(block) < 16 else 0
            state = mix(state ^ first, s2 ^ second ^ short)
        low = mix(state ^ s3, len(data) ^ s1)
        total = [(total[0] + low) & mask, (total[1] + mix(low ^ s0, state ^ s2)) & mask]
    return total[0], total[1]


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 2**32))
def test_checksum_is_the_documented_one(width, rows, seed):
    # Recorded in bundles and compared between machines: a change here breaks every existing one.
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, 2**64 - 1, rows, dtype=np.uint64))
    values = rng.integers(0, 256, (len(keys), width), dtype=np.uint8)
    expected = checksum_by_the_book({int(k): v.tobytes() for k, v in zip(keys, values, strict=True)})
    assert _core.checksum(keys, [values]) == expected


@pytest.mark.parametrize(
    ("keys", "before", "expected"),
    [([], None, -1), ([1, 2, 9], None, -1), ([1, 1], None, 1), ([2, 1], None, 1), ([5, 6], 5, 0), ([6, 7], 5, -1)],
)
def test_first_disorder(keys, before, expected):
    found = _core.first_disorder(np.array(keys, np.uint64), before or 0, before is not None)
    assert found == expected


@given(st.integers(0, 200), st.integers(1, 70))
def test_planes_are_a_transposition(rows, width):
    data = np.random.default_rng(rows).integers(0, 256, (rows, width), dtype=np.uint8)
    planes = np.empty((width, rows), np.uint8)
    _core.to_planes(data, planes)
    assert (planes == data.T).all()
    back = np.empty_like(data)
    _core.from_planes(planes, back)
    assert (back == data).all()


def test_wrong_shapes_and_bases_are_refused():
    keys, columns = arrays({1: b"abc", 2: b"def"})
    none = np.empty(0, np.uint64)
    with pytest.raises(ValueError, match="removes key 7, which its base does not have"):
        _core.merged_size(keys, none, np.array([7], np.uint64))
    with pytest.raises(ValueError, match="different width"):
        _core.diff(keys, columns, keys, columns[:1])
    with pytest.raises(ValueError, match="differ in length"):
        _core.checksum(keys[:1], columns)
    with pytest.raises(ValueError, match="merged table's shape"):
        _core.merge(keys, columns, none, [c[:0] for c in columns], none, none, [c[:0].copy() for c in columns])
    with pytest.raises(ValueError, match="each other's shape"):
        _core.to_planes(columns[0], np.empty((9, 9), np.uint8))
