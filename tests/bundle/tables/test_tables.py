"""Tables: streams, deltas, chains and what is accepted as input."""

import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudedge import seqfile
from cloudedge.bundle.tables import _rows
from cloudedge.bundle.tables._delta_file import DeltaFile, DeltaWriter
from cloudedge.bundle.tables._rows import Checksum, Rows, RowType, aligned, difference, merged
from cloudedge.bundle.tables._table import Table
from cloudedge.bundle.tables._table_inputs import canonical
from cloudedge.bundle.tables._table_layers import should_chain, table_bytes
from cloudedge.config import Limits
from cloudedge.errors import InputError, IntegrityError
from tests.models import change_table, make_table

pytestmark = pytest.mark.rules

DTYPES = ["float32", "float16", "int8"]


def write_table(path, arrays):
    rows = canonical(arrays, on_duplicate="refuse")
    path.write_bytes(b"".join(table_bytes(rows.kind, rows.rows, rows.stream)))
    return Table([path], base_checksum=str(rows.checksum))


def write_delta(path, before: Table, after):
    rows = canonical(after, on_duplicate="refuse")
    with DeltaWriter(path.parent) as writer:
        for window in difference(before.stream(), rows.stream()):
            writer.add(window)
        writer.write(path, base=before.recorded_checksum, result=str(rows.checksum), result_rows=rows.rows)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_base_is_read_by_the_safetensors_package(tmp_path, dtype):
    arrays = make_table(dtype=dtype)
    write_table(tmp_path / "t", arrays)
    loaded = safetensors.numpy.load_file(tmp_path / "t")
    assert sorted(loaded) == sorted(arrays)
    for name, array in arrays.items():
        assert (loaded[name] == array).all()
        assert loaded[name].dtype == array.dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_safetensors_package_wrote_is_taken_as_it_is(tmp_path, dtype):
    arrays = make_table(dtype=dtype)
    safetensors.numpy.save_file(arrays, tmp_path / "t.safetensors")
    rows = canonical(tmp_path / "t.safetensors", on_duplicate="refuse")
    assert rows.file == tmp_path / "t.safetensors"
    assert (Table([rows.file]).values == arrays["values"]).all()


def test_views_are_not_copies(tmp_path):
    table = write_table(tmp_path / "t", make_table())
    assert not table.values.flags.owndata
    assert not table.values.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chain_reads_as_the_table_it_stands_for(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(_rows, "ROWS_PER_WINDOW", 100)
    monkeypatch.setattr("cloudedge.bundle.tables._table.ROWS_PER_WINDOW", 100)
    now = make_table(dtype=dtype)
    files = [tmp_path / "base"]
    table = write_table(files[0], now)
    base_checksum = table.recorded_checksum
    for i in range(5):
        now = change_table(now, seed=i, share=0.05)
        files.append(write_delta(tmp_path / f"d{i}", table, now))
        table = Table(files, base_checksum)
        assert (table.keys == now["keys"]).all()
        assert (table.values == now["values"]).all()
        assert len(table) == len(now["keys"])
        assert str(table.checksum) == table.recorded_checksum
    if dtype == "int8":
        assert (table.scale == now["scale"]).all()
    values, found = table.lookup([int(now["keys"][3]), 0, int(now["keys"][-1])])
    assert found.tolist() == [True, False, True]
    assert (values[0] == now["values"][3]).all()
    assert not values[1].any()


def test_a_delta_on_another_base_is_refused(tmp_path):
    one, two = make_table(seed=1), make_table(seed=2)
    first, second = write_table(tmp_path / "a", one), write_table(tmp_path / "b", two)
    delta = write_delta(tmp_path / "d", first, change_table(one, seed=3))
    assert len(Table([tmp_path / "a", delta], first.recorded_checksum))
    with pytest.raises(IntegrityError, match="is a delta for rows"):
        Table([tmp_path / "b", delta], second.recorded_checksum)
    with pytest.raises(IntegrityError, match="for unknown"):
        Table([tmp_path / "a", delta])


def test_everything_removed_and_everything_added(tmp_path):
    arrays = make_table(300)
    none = {"keys": arrays["keys"][:0], "values": arrays["values"][:0]}
    full, empty = write_table(tmp_path / "full", arrays), write_table(tmp_path / "empty", none)
    gone = Table([tmp_path / "full", write_delta(tmp_path / "d1", full, none)], full.recorded_checksum)
    assert len(gone.keys) == 0
    back = Table([tmp_path / "empty", write_delta(tmp_path / "d2", empty, arrays)], empty.recorded_checksum)
    assert (back.values == arrays["values"]).all()


@settings(max_examples=200)
@given(st.lists(st.sets(st.integers(0, 200)), min_size=1, max_size=4), st.integers(1, 9), st.randoms())
def test_aligned_windows_lose_nothing_and_agree_on_keys(sets, window, random):
    def stream(keys):
        ordered = np.array(sorted(keys), np.uint64)
        at = 0
        while at < len(ordered):
            step = random.randint(1, window)
            yield Rows(ordered[at : at + step], ())
            at += step

    seen = [[] for _ in sets]
    last = -1
    for group in aligned([stream(keys) for keys in sets]):
        everything = [int(k) for rows in group for k in rows.keys]
        assert min(everything) > last
        last = max(everything)
        for i, rows in enumerate(group):
            seen[i] += rows.keys.tolist()
    assert seen == [sorted(keys) for keys in sets]


def test_removing_what_is_not_there_is_noticed():
    base = iter([Rows.of(np.array([1, 2], np.uint64), np.zeros((2, 1), np.float32))])
    removed = iter([Rows(np.array([7], np.uint64), ())])
    with pytest.raises(ValueError, match="removes key 7"):
        list(merged(base, [(iter([]), removed)]))


def test_damage_to_a_delta_is_noticed_before_it_is_believed(tmp_path):
    base = write_table(tmp_path / "a", make_table())
    path = write_delta(tmp_path / "d", base, change_table(make_table(), seed=1, share=0.2))
    good = path.read_bytes()
    expected = [(r.keys.tolist(), r.columns[0].tobytes()) for r in DeltaFile(path, base.kind).rows()]
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.integers(0, len(bad))] ^= 1 << rng.integers(0, 8)
        path.write_bytes(bad)
        try:
            found = [(r.keys.tolist(), r.columns[0].tobytes()) for r in DeltaFile(path, base.kind).rows()]
        except (InputError, IntegrityError):
            refused += 1
        else:
            # Literals inside a frame carry no check of their own; the layer's digest covers them.
            assert [len(k) for k, _ in found] == [len(k) for k, _ in expected]
    assert refused > 10
    for cut in range(0, len(good), 97):
        path.write_bytes(good[:cut])
        with pytest.raises((InputError, IntegrityError)):
            list(DeltaFile(path, base.kind).rows())


CHAINS = {
    "small delta": ((1000,), 10, 1000, True),
    "delta as large as a base": ((1000,), 1000, 1000, False),
    "chain full": ((1000, 1, 1, 1), 1, 1000, False),
    "chain not yet full": ((1000, 1, 1), 1, 1000, True),
    "deltas too heavy together": ((1000, 400), 101, 1000, False),
    "deltas just light enough": ((1000, 400), 100, 1000, True),
    "table shrank": ((1000,), 90, 80, False),
}


@pytest.mark.parametrize(("chain", "delta", "base", "expected"), CHAINS.values(), ids=CHAINS)
def test_when_a_delta_is_worth_it(chain, delta, base, expected):
    assert should_chain(chain, delta, base, Limits(max_deltas=3, max_delta_share=0.5)) is expected


# --- what people hand in -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True], ids=["stored", "compressed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_npz(tmp_path, dtype, compressed):
    arrays = make_table(dtype=dtype)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "t.npz", **arrays)
    rows = canonical(tmp_path / "t.npz", on_duplicate="refuse")
    assert rows.kind == RowType(np.dtype(dtype), 4)
    assert b"".join(w.columns[0].tobytes() for w in rows.stream()) == arrays["values"].tobytes()


def test_npy_rows_are_keyed_by_number(tmp_path):
    np.save(tmp_path / "w.npy", np.ones((5, 3), np.float32))
    rows = canonical(tmp_path / "w.npy", on_duplicate="refuse")
    assert next(rows.stream()).keys.tolist() == [0, 1, 2, 3, 4]


def test_a_sequence_file(tmp_path):
    arrays = make_table()
    seqfile.write(tmp_path / "t.seq", ((int(k), v.tobytes()) for k, v in zip(*arrays.values(), strict=True)))
    rows = canonical(tmp_path / "t.seq", on_duplicate="refuse")
    assert rows.checksum == canonical(arrays, on_duplicate="refuse").checksum
    seqfile.write(tmp_path / "odd.seq", [(1, b"12345")])
    with pytest.raises(InputError, match="5 bytes, which is not a whole number of float32"):
        canonical(tmp_path / "odd.seq", on_duplicate="refuse")


def test_negative_ids_are_their_twos_complement():
    rows = canonical({"keys": np.array([5, -1]), "values": np.zeros((2, 1), np.float32)}, on_duplicate="refuse")
    assert next(rows.stream()).keys.tolist() == [5, 2**64 - 1]


def test_unsorted_input_is_sorted_and_said_so():
    arrays = make_table(500)
    order = np.random.default_rng(0).permutation(500)
    rows = canonical({k: v[order] for k, v in arrays.items()}, on_duplicate="refuse")
    (note,) = rows.notes
    first = int((np.diff(arrays["keys"][order].astype(float)) < 0).argmax()) + 1
    assert f"row {first} " in note
    assert b"".join(w.keys.tobytes() for w in rows.stream()) == arrays["keys"].tobytes()
    assert rows.checksum == canonical(arrays, on_duplicate="refuse").checksum


def test_duplicates_are_refused_with_their_rows_or_the_last_is_kept():
    table = {"keys": np.array([9, 3, 9, 1, 9], np.uint64), "values": np.arange(5, dtype=np.float32).reshape(5, 1)}
    with pytest.raises(InputError, match="key 9 is in row 0 and again in row 2") as caught:
        canonical(table, on_duplicate="refuse")
    assert caught.value.rows == (0, 2)
    rows = canonical(table, on_duplicate="last")
    window = next(rows.stream())
    assert window.keys.tolist() == [1, 3, 9]
    assert window.columns[0].view(np.float32).ravel().tolist() == [3.0, 1.0, 4.0]
    assert rows.checksum == window.checksum()
    assert any("2 repeated rows dropped" in note for note in rows.notes)


def test_adjacent_duplicates_in_sorted_input():
    table = {"keys": np.array([1, 1, 2], np.uint64), "values": np.zeros((3, 1), np.float32)}
    with pytest.raises(InputError, match="key 1 is in row 0 and again in row 1"):
        canonical(table, on_duplicate="refuse")
    assert len(canonical(table, on_duplicate="last").notes) == 1


@pytest.mark.parametrize("where", ["values", "scale"])
def test_nan_is_reported_with_its_row(where):
    table = make_table(70_000, 2, dtype="int8" if where == "scale" else "float16")
    table[where][66_000] = np.nan
    with pytest.raises(InputError, match=rf"'{where}' of row 66000 \(key {table['keys'][66_000]}\) is not a number"):
        canonical(table, on_duplicate="refuse")


def test_infinities_of_both_signs_are_not_nan():
    table = make_table(10)
    table["values"][0, 0], table["values"][1, 0] = np.inf, -np.inf
    assert canonical(table, on_duplicate="refuse").rows == 10


def f32(*shape):
    return np.zeros(shape, np.float32)


SHAPES = {
    "no values": {"keys": np.zeros(2, np.uint64)},
    "no keys": {"values": f32(2, 2)},
    "float keys": {"keys": np.zeros(2), "values": f32(2, 2)},
    "two-dimensional keys": {"keys": np.zeros((2, 1), np.uint64), "values": f32(2, 2)},
    "flat values": {"keys": np.zeros(2, np.uint64), "values": f32(2)},
    "double values": {"keys": np.zeros(2, np.uint64), "values": np.zeros((2, 2))},
    "different lengths": {"keys": np.zeros(3, np.uint64), "values": f32(2, 2)},
    "int8 without scale": {"keys": np.zeros(2, np.uint64), "values": np.zeros((2, 2), np.int8)},
    "scale of another length": {
        "keys": np.zeros(2, np.uint64),
        "values": np.zeros((2, 2), np.int8),
        "scale": f32(3),
    },
}


@pytest.mark.parametrize("arrays", SHAPES.values(), ids=SHAPES)
def test_what_is_no_table_is_refused(arrays):
    with pytest.raises(InputError):
        canonical(arrays, on_duplicate="refuse")


def test_files_that_are_not_what_they_are_called(tmp_path):
    for name in ("t.npz", "t.npy", "t.safetensors", "t.seq", "t.csv"):
        (tmp_path / name).write_bytes(b"not what you think")
        with pytest.raises(InputError, match=r"t\."):
            canonical(tmp_path / name, on_duplicate="refuse")
    with pytest.raises(InputError, match="does not exist"):
        canonical(tmp_path / "absent.npz", on_duplicate="refuse")


def header(value, *, length=None, tail=b""):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + tail


def spec(dtype="U64", shape=(1,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HEADERS = {
    "empty": b"",
    "seven bytes": b"1234567",
    "length beyond the file": header({}, length=1 << 62),
    "length of 2^64-1": b"\xff" * 8 + b"{}",
    "not json": header(b"{nope"),
    "a list": header([]),
    "unknown dtype": header({"keys": spec("BF16")}, tail=b"x" * 8),
    "negative shape": header({"keys": spec(shape=(-1,))}, tail=b"x" * 8),
    "absurd shape": header({"keys": spec(shape=(1 << 62,))}, tail=b"x" * 8),
    "shape that multiplies beyond": header({"keys": spec(shape=(9, 9, 9, 9, 9, 9, 9, 9, 9))}, tail=b"x" * 8),
    "offsets that do not fit the shape": header({"keys": spec(offsets=(0, 7))}, tail=b"x" * 8),
    "offsets beyond the file": header({"keys": spec(offsets=(8, 16))}, tail=b"x" * 8),
    "overlapping arrays": header({"keys": spec(), "values": spec()}, tail=b"x" * 8),
    "bytes nobody owns": header({"keys": spec()}, tail=b"x" * 9),
    "shape of strings": header({"keys": spec(shape=("a",))}, tail=b"x" * 8),
    "no offsets": header({"keys": {"dtype": "U64", "shape": [1]}}, tail=b"x" * 8),
}


@pytest.mark.parametrize("raw", HEADERS.values(), ids=HEADERS)
def test_bad_safetensors_headers_are_refused(tmp_path, raw):
    (tmp_path / "t.safetensors").write_bytes(raw)
    with pytest.raises(InputError, match=r"not a usable safetensors file"):
        canonical(tmp_path / "t.safetensors", on_duplicate="refuse")


@settings(max_examples=300)
@given(st.data())
def test_mutated_safetensors_files_never_crash(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("m") / "t.safetensors"
    safetensors.numpy.save_file(make_table(8), path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        rows = canonical(path, on_duplicate="last")
        assert sum(len(w) for w in rows.stream()) == rows.rows
    except InputError:
        pass


def test_checksums_add_up():
    assert Checksum(2**64 - 1, 1) + Checksum(2, 3) == Checksum(1, 4)
    assert str(Checksum(1, 2)) == "00000000000000020000000000000001"
