from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cloudedge import seqfile
from cloudedge.cube import PartStore, build, dequantise, dump, inspect, quantise
from cloudedge.errors import ConfigError, Conflict, InputError
from tests.cube.reference import SYNC, sequence_bytes, sequence_records

pytestmark = pytest.mark.rules

ROWS = np.array([[1.0, 2.0, -1.0, 0.5], [3.0, 3.0, 3.0, 3.0]], np.float32)


def varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out) + bytes([value])


def lodtensor(values: np.ndarray, *, dims=None, code=5, levels=(), versions=(0, 0), packed=False) -> bytes:
    dims = values.shape if dims is None else dims
    body = b"".join(varint(d) for d in dims)
    encoded = b"\x12" + varint(len(body)) + body if packed else b"".join(b"\x10" + varint(d) for d in dims)
    desc = b"\x08" + varint(code) + encoded
    lod = b"".join(struct.pack("<Q", len(level)) + level for level in levels)
    head = struct.pack("<IQ", versions[0], len(levels)) + lod + struct.pack("<Ii", versions[1], len(desc))
    return head + desc + values.tobytes()


def test_a_published_row_is_quantised_byte_for_byte():
    assert quantise(ROWS[:1]).tobytes().hex() == "000080bf00000040aaff0080"
    decoded = dequantise(quantise(ROWS[:1]))
    assert decoded[0, 1] == np.float32(1.98828125)
    assert decoded[0, 2] == -1.0


def test_a_row_of_equal_values_has_codes_of_zero():
    encoded = quantise(ROWS[1:])
    assert encoded.tobytes() == struct.pack("<2f4x", 3.0, 3.0)
    assert dequantise(encoded).tolist() == [[3.0] * 4]


def reference_quantised(row: np.ndarray) -> bytes:
    """The narrowing search, step by step, in single precision where upstream has it."""
    f = np.float32

    def loss(low, high):
        step = f(np.float64(high - low) / 256)
        total = f(0)
        for x in row:
            code = max(0, min(255, int(np.floor(np.float64((x - low) / (high - low)) * 255 + 0.5))))
            error = f(x - f(f(f(code) * step) + low))
            total = f(total + f(error * error))
        return total

    low, high = row.min(), row.max()
    best_low, best_high, best = low, high, loss(low, high)
    step = f((high - low) / f(200))
    narrowest = f(f(f(200) * f(f(1) - f(0.16))) * step)
    while f(low + narrowest) < high:
        left, right = loss(f(low + step), high), loss(low, f(high - step))
        if left < best:
            low = f(low + step)
            if left < right:
                best, best_low = left, low
        else:
            high = f(high - step)
            if right < best:
                best, best_high = right, high
    scale = f(np.float64(best_high - best_low) / 255)
    codes = [max(0, min(255, int(np.floor(np.float64(f((x - best_low) / scale)) + 0.5)))) for x in row]
    return struct.pack("<2f", best_low, best_high) + bytes(codes)


def test_narrowing_agrees_with_a_plain_search():
    draw = np.random.default_rng(9)
    rows = np.vstack([draw.normal(size=(30, 8)), draw.standard_cauchy(size=(30, 8))]).astype(np.float32)
    encoded = quantise(rows, threads=2)
    narrowed = 0
    for row, found in zip(rows, encoded, strict=True):
        assert found.tobytes() == reference_quantised(row)
        narrowed += struct.unpack_from("<2f", found.tobytes()) != (row.min(), row.max())
    assert narrowed > 5  # most rows keep their range; some must not, or the search was not tested


def test_narrowing_ends_where_a_step_is_lost_in_rounding():
    row = np.array([[1e8, 1e8 + 8, 1e8, 1e8 + 8]], np.float32)
    assert dequantise(quantise(row)).shape == (1, 4)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_has_no_range_is_not_quantised(bad):
    with pytest.raises(InputError, match="row 1 holds"):
        quantise(np.array([[1.0], [bad]], np.float32))
    with pytest.raises(InputError, match="two-dimensional"):
        quantise(np.zeros(3, np.float32))
    with pytest.raises(InputError, match=r"8 \+ dim"):
        dequantise(np.zeros((1, 7), np.uint8))


def records_of(path: Path) -> list[tuple[int, bytes]]:
    return sequence_records(path.read_bytes())


def numbered(values: np.ndarray) -> list[tuple[int, bytes]]:
    return [(i, row.astype(np.float32).tobytes()) for i, row in enumerate(values)]


@pytest.mark.parametrize(
    "change",
    [{}, {"packed": True}, {"levels": (bytes(8), bytes(24))}],
    ids=["plain", "packed dims", "with LoD"],
)
def test_a_parameter_becomes_numbered_rows(tmp_path, change):
    (tmp_path / "emb").write_bytes(lodtensor(ROWS, **change))
    report = dump(tmp_path / "emb", tmp_path / "s", sync=SYNC)
    assert (report.format, report.rows) == ("parameter", 2)
    assert (tmp_path / "s").read_bytes() == sequence_bytes(numbered(ROWS))
    assert inspect(tmp_path / "emb") | {"path": 0} == {
        "kind": "parameter", "path": 0, "rows": 2, "dim": 4, "dtype": "float32",
    }  # fmt: skip


def test_a_parameter_is_quantised(tmp_path):
    (tmp_path / "emb").write_bytes(lodtensor(ROWS))
    dump(tmp_path / "emb", tmp_path / "s", quantised=True)
    assert records_of(tmp_path / "s") == [(i, row.tobytes()) for i, row in enumerate(quantise(ROWS))]


def test_half_and_double_precision_become_float32(tmp_path):
    for code, dtype in ((4, np.float16), (6, np.float64)):
        (tmp_path / f"p{code}").write_bytes(lodtensor(ROWS.astype(dtype), code=code))
        dump(tmp_path / f"p{code}", tmp_path / f"s{code}")
        assert records_of(tmp_path / f"s{code}") == numbered(ROWS)
    np.save(tmp_path / "big.npy", np.array([[1e300]]))
    with pytest.raises(InputError, match="float32 cannot"):
        dump(tmp_path / "big.npy", tmp_path / "s")
    assert not (tmp_path / "s").exists()


BAD_PARAMETERS = {
    "version": (lodtensor(ROWS, versions=(1, 0)), "LoDTensor version is 1", 0),
    "tensor version": (lodtensor(ROWS, versions=(0, 7)), "tensor version is 7", 12),
    "three dimensions": (lodtensor(ROWS, dims=(2, 2, 2)), r"dimensions \[2, 2, 2\]", 20),
    "negative dimension": (lodtensor(ROWS, dims=(-1, 4)), r"dimensions \[-1, 4\]", 20),
    "integers": (lodtensor(ROWS, code=3), "data type 3", 20),
    "too short": (lodtensor(ROWS)[:-1], "take 32 bytes, the file has 31", None),
    "too long": (lodtensor(ROWS) + b"x", "take 32 bytes, the file has 33", None),
    "huge level": (struct.pack("<IQQ", 0, 1, 2**63), "size of a LoD level", 12),
    "cut head": (bytes(14), "ends inside the tensor version", 12),
}


@pytest.mark.parametrize(("data", "message", "offset"), BAD_PARAMETERS.values(), ids=BAD_PARAMETERS)
def test_a_bad_parameter_is_refused_where_it_is_bad(tmp_path, data, message, offset):
    (tmp_path / "emb").write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        dump(tmp_path / "emb", tmp_path / "s", form="parameter")
    assert offset in (None, caught.value.offset)
    assert not (tmp_path / "s").exists()


def test_every_cut_of_a_parameter_is_refused(tmp_path):
    data = lodtensor(ROWS, levels=(bytes(8),))
    for size in range(len(data)):
        path = tmp_path / str(size)
        path.write_bytes(data[:size])
        with pytest.raises(InputError):
            dump(path, tmp_path / "s", form="parameter")


def test_numpy_arrays_become_rows(tmp_path):
    np.save(tmp_path / "a.npy", ROWS.astype(">f8"))
    assert dump(tmp_path / "a.npy", tmp_path / "s1").format == "numpy"
    assert records_of(tmp_path / "s1") == numbered(ROWS)
    np.savez(tmp_path / "b.npz", keys=np.array([-1, 7]), values=ROWS)
    dump(tmp_path / "b.npz", tmp_path / "s2")
    assert records_of(tmp_path / "s2") == [(2**64 - 1, ROWS[0].tobytes()), (7, ROWS[1].tobytes())]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"keys": np.arange(3), "values": ROWS}, "'keys' is int64"),
        ({"values": ROWS}, "keys"),
        ({"keys": np.arange(2), "values": np.arange(2)}, "not floats of two dimensions"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(InputError, match=message):
        dump(tmp_path / "b.npz", tmp_path / "s")


def test_a_pickled_array_is_refused_not_run(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError, match="not an array that can become a table"):
        dump(tmp_path / "a.npy", tmp_path / "s")


def test_a_safetensors_table_becomes_records(tmp_path):
    keys = np.array([5, 2**64 - 1], np.uint64)
    save_file({"values": ROWS.astype(np.float16), "keys": keys}, tmp_path / "t.safetensors")
    assert dump(tmp_path / "t.safetensors", tmp_path / "s").format == "safetensors"
    assert records_of(tmp_path / "s") == [(5, ROWS[0].tobytes()), (2**64 - 1, ROWS[1].tobytes())]
    assert inspect(tmp_path / "t.safetensors")["rows"] == 2


def header(entries, *, length=None, data=b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = {"keys": entry("U64", [2], 0, 16), "values": entry("F32", [2, 1], 16, 24)}
BAD_TABLES = {
    "not safetensors": (header(GOOD, data=bytes(23)), "not a usable safetensors file"),
    "no values": (header({"keys": GOOD["keys"]}, data=bytes(16)), r"it holds \['keys'\]"),
    "signed keys": (header(GOOD | {"keys": entry("I64", [2], 0, 16)}, data=bytes(24)), "'keys' is int64"),
    "one dimension": (header(GOOD | {"values": entry("F32", [2], 16, 24)}, data=bytes(24)), r"float32\[2\] beside 2"),
    "other rows": (header(GOOD | {"values": entry("F32", [1, 2], 16, 24)}, data=bytes(24)), r"\[1, 2\] beside 2 keys"),
}


@pytest.mark.parametrize(("data", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_bad_table_header_is_refused(tmp_path, data, message):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(InputError, match=message):
        dump(tmp_path / "t", tmp_path / "s", form="safetensors")


def test_text_in_both_forms(tmp_path):
    lines = b"1 0.5 1 1.0 2.0\n\n-1\t3\t4\t0.5 -0.25\r\n7:any text: more\n8:\n9 0 0\n"
    (tmp_path / "t").write_bytes(lines)
    assert dump(tmp_path / "t", tmp_path / "s").format == "text"
    assert records_of(tmp_path / "s") == [
        (1, struct.pack("<2f", 1.0, 2.0)),
        (2**64 - 1, struct.pack("<2f", 0.5, -0.25)),
        (7, b"any text: more"),
        (8, b""),
        (9, b""),
    ]


@pytest.mark.parametrize(
    "line", [b"1 2", b"x 0 0 1", b"18446744073709551616 0 0 1", b"1 0 0 1e300", b"1 a 0 1", b"1 0 0 1.x", b"\xff\xfe"]
)
def test_a_bad_line_is_refused_by_number(tmp_path, line):
    (tmp_path / "t").write_bytes(b"1 0 0 1.0\n" + line + b"\n")
    with pytest.raises(InputError, match="line 2: cannot read") as caught:
        dump(tmp_path / "t", tmp_path / "s", form="text")
    assert caught.value.line == 2
    assert not (tmp_path / "s").exists()


SAVED = ["10 6 0 0.2 2 1 0.011 0.5", "11 6 3 0.1 1 0 -0.02 0.25", "12 7 1 0 4 4 0.3 0"]  # by a parameter server


@pytest.mark.parametrize("lines", [SAVED, SAVED[:1], [f"{line} 0.1 -0.2" for line in SAVED], SAVED * 1000])
def test_a_save_of_a_parameter_server_is_refused_and_described(tmp_path, lines):
    (tmp_path / "t").write_text("\n".join(lines) + "\n\n")
    with pytest.raises(
        InputError, match=r"look like a parameter server's save, 'key slot unseen_days.*such as '1"
    ) as no:
        dump(tmp_path / "t", tmp_path / "s")
    assert "`--from columns`" in str(no.value.hint)
    assert not (tmp_path / "s").exists()
    assert dump(tmp_path / "t", tmp_path / "s", form="columns").rows == len(lines)


def test_one_line_with_weights_tells_a_table_from_a_save(tmp_path):
    (tmp_path / "t").write_text("\n".join([*SAVED, "13 5 1 -0.5 0.25 0.125 1 2"]) + "\n")
    assert dump(tmp_path / "t", tmp_path / "s").rows == 4
    assert records_of(tmp_path / "s")[0] == (10, struct.pack("<5f", 0.2, 2, 1, 0.011, 0.5))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 -0.5 0.25 1", "show and click, which are never negative"),  # key and weights, without counters
        ("2 nan 0 1", "show and click, which are never negative"),
        ("2 0 0 1 2", "2 numbers after show and click, and rows before have 1"),
    ],
)
def test_columns_that_contradict_the_form_are_refused(tmp_path, line, message):
    (tmp_path / "t").write_text(f"1 0 0 1.0\n{line}\n")
    for form in ("text", "columns"):
        with pytest.raises(InputError, match=message):
            dump(tmp_path / "t", tmp_path / "s", form=form)


def test_columns_have_no_pairs(tmp_path):
    (tmp_path / "t").write_text("7:text\n")
    with pytest.raises(InputError, match="line 1"):
        dump(tmp_path / "t", tmp_path / "s", form="columns")


def test_other_refusals(tmp_path):
    (tmp_path / "t").write_text("1 0 0 1\n")
    with pytest.raises(InputError, match="'csv' is no input format"):
        dump(tmp_path / "t", tmp_path / "s", form="csv")
    with pytest.raises(InputError, match="not quantised"):
        dump(tmp_path / "t", tmp_path / "s", quantised=True)
    with pytest.raises(InputError, match="No such file"):
        dump(tmp_path / "nothing", tmp_path / "s")
    dump(tmp_path / "t", tmp_path / "s")
    with pytest.raises(Conflict):
        dump(tmp_path / "t", tmp_path / "s")
    assert list(seqfile.read(tmp_path / "s")) == [(1, struct.pack("<f", 1))]
    assert not issubclass(InputError, ConfigError)


def test_sequence_files_and_parts_become_tables_and_back(tmp_path):
    """A table, its SequenceFile, what is built of that, and the tables made of both hold the same rows."""
    keys = np.array([1, 4, 2**64 - 2], np.uint64)
    table = {"keys": keys, "values": np.arange(12, dtype=np.float32).reshape(3, 4)}
    save_file(table, tmp_path / "t.safetensors")
    dump(tmp_path / "t.safetensors", tmp_path / "seq")
    build([tmp_path / "seq"], output=tmp_path / "built", table="d", shards=2, version=1, reserve_key=True)
    whole = dump(tmp_path / "seq", tmp_path / "from-seq.safetensors")
    part = dump(tmp_path / "built" / "1_1" / "d_part0", tmp_path / "from-part", to="safetensors")
    assert (whole.format, whole.rows, part.format, part.rows) == ("sequence", 3, "part", 2)
    found = load_file(tmp_path / "from-seq.safetensors")
    assert all(np.array_equal(found[name], table[name]) for name in table)
    found = load_file(tmp_path / "from-part")
    assert (found["keys"].tolist(), found["values"].tolist()) == ([4, 2**64 - 2], table["values"][1:].tolist())
    dump(tmp_path / "built" / "1_1" / "d_part0", tmp_path / "again")
    assert seqfile.read_table(tmp_path / "again").keys.tolist() == [4, 2**64 - 2]
    with pytest.raises(Conflict):
        dump(tmp_path / "seq", tmp_path / "from-seq.safetensors")
    with pytest.raises(InputError, match="SequenceFile already"):
        dump(tmp_path / "seq", tmp_path / "another")
    with pytest.raises(InputError, match="no output format"):
        dump(tmp_path / "seq", tmp_path / "another", to="csv")
    assert not list(tmp_path.glob(".*"))


def test_a_directory_of_sequence_files_becomes_one_table_and_the_last_row_wins(tmp_path):
    (tmp_path / "in").mkdir()
    for number, value in enumerate((b"aaaa", b"bbbb")):
        seqfile.write(tmp_path / "in" / f"part-{number}", [(7, value), (number, value)])
    dump(tmp_path / "in", tmp_path / "t.safetensors")
    found = load_file(tmp_path / "t.safetensors")
    assert found["keys"].tolist() == [0, 1, 7]
    assert [row.tobytes() for row in found["values"]] == [b"aaaa", b"bbbb", b"bbbb"]


def test_rows_that_are_no_floats_stay_bytes(tmp_path):
    """8-bit rows of an odd dimension: 8 + 3 bytes."""
    np.save(tmp_path / "t.npy", ROWS[:, :3])
    dump(tmp_path / "t.npy", tmp_path / "t.safetensors", quantised=True)
    found = load_file(tmp_path / "t.safetensors")
    assert found["values"].dtype == np.uint8
    assert np.array_equal(found["values"], quantise(ROWS[:, :3]))
    dump(tmp_path / "t.safetensors", tmp_path / "seq")
    assert np.array_equal(seqfile.read_table(tmp_path / "seq").values, found["values"])
    build([tmp_path / "t.safetensors"], output=tmp_path / "built", table="d", shards=1, version=1)
    assert PartStore.open(tmp_path / "built" / "1_1" / "d_part0").get([1]) == [found["values"][1].tobytes()]
