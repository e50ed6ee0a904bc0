"""Models to serve: a tiny MLP, and a click model with and without its table split off."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from cloudedge.bundle import Bundle, Lookup, Probes, Signature, Variable
from cloudedge.hub import LocalHub

SLOTS = [f"C{i}" for i in range(1, 27)]
TABLE_ROWS, DIM = 1000, 9


def paddle():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle  # noqa: PLC0415 - heavy, and it warns
    return paddle


def _save(folder: Path, build, seed: int) -> None:
    p = paddle()
    p.enable_static()
    try:
        p.seed(seed)
        main, start = p.static.Program(), p.static.Program()
        with warnings.catch_warnings(), p.static.program_guard(main, start):
            warnings.simplefilter("ignore")
            inputs, outputs = build(p)
            executor = p.static.Executor(p.CPUPlace())
            executor.run(start)
            p.static.save_inference_model(str(folder / "model"), inputs, outputs, executor, program=main)
    finally:
        p.disable_static()


def save_tiny(folder: Path, *, seed: int = 1, width: int = 13, hidden: int = 64) -> Path:
    """13-64-1, as in the performance table."""

    def build(p):
        x = p.static.data("x", [-1, width], "float32")
        return [x], [p.static.nn.fc(p.static.nn.fc(x, hidden, activation="relu"), 1)]

    _save(folder, build, seed)
    return folder


def _mlp(p, dense, rows):
    h = p.concat([dense, *[p.reshape(r, [-1, DIM]) for r in rows]], 1)
    for _ in range(3):
        h = p.static.nn.fc(h, 400, activation="relu")
    return p.nn.functional.sigmoid(p.static.nn.fc(h, 1))


def save_ctr_dense(folder: Path, *, seed: int = 1) -> Path:
    """13 dense + 26 slots whose rows are inputs."""

    def build(p):
        dense = p.static.data("dense", [-1, 13], "float32")
        rows = [p.static.data(f"emb_{slot}", [-1, 1, DIM], "float32") for slot in SLOTS]
        return [dense, *rows], [_mlp(p, dense, rows)]

    _save(folder, build, seed)
    return folder


def save_ctr_full(folder: Path, *, seed: int = 1) -> Path:
    """The same with its table inside."""

    def build(p):
        dense = p.static.data("dense", [-1, 13], "float32")
        ids = [p.static.data(slot, [-1, 1], "int64") for slot in SLOTS]
        table = p.create_parameter([TABLE_ROWS, DIM], "float32", name="emb")
        return [dense, *ids], [_mlp(p, dense, [p.nn.functional.embedding(i, table) for i in ids])]

    _save(folder, build, seed)
    return folder


def save_marked(folder: Path, mark: float) -> Path:
    """Answers x + mark."""

    def build(p):
        x = p.static.data("x", [-1, 2], "float32")
        constant = p.nn.initializer.Constant(mark)
        return [x], [x + p.create_parameter([2], "float32", default_initializer=constant)]

    _save(folder, build, 1)
    return folder


def save_rows(folder: Path) -> Path:
    """Answers the rows that were looked up for `ids` and `more`, side by side, plus a parameter that is 0."""

    def build(p):
        ids = p.static.data("rows_ids", [-1, 1, 3], "float32")
        more = p.static.data("rows_more", [-1, 1, 3], "float32")
        zero = p.create_parameter([1], "float32", default_initializer=p.nn.initializer.Constant(0.0))
        return [ids, more], [p.concat([p.reshape(ids, [-1, 3]), p.reshape(more, [-1, 3])], 1) + zero]

    _save(folder, build, 1)
    return folder


def save_lengths(folder: Path) -> Path:
    """Answers the sum of each row, whose length varies."""

    def build(p):
        x = p.static.data("x", [-1, -1], "float32")
        zero = p.create_parameter([1], "float32", default_initializer=p.nn.initializer.Constant(0.0))
        return [x], [p.sum(x, 1, keepdim=True) + zero]

    _save(folder, build, 1)
    return folder


def save_pooled(folder: Path) -> Path:
    """Answers the sum of the rows that were looked up for `ids`, of which there are more or fewer."""

    def build(p):
        ids = p.static.data("rows_ids", [-1, -1, 3], "float32")
        zero = p.create_parameter([1], "float32", default_initializer=p.nn.initializer.Constant(0.0))
        return [ids], [p.sum(ids, 1) + zero]

    _save(folder, build, 1)
    return folder


ROWS = Signature(
    feed=(Variable(name="ids", dtype="int64", shape=(1,)), Variable(name="more", dtype="int64", shape=(1,))),
    fetch=(Variable(name="fetch_name_0", alias="rows", shape=(6,)),),
    lookups=(
        Lookup(feed="ids", input="rows_ids", table="t"),
        Lookup(feed="more", input="rows_more", table="t", padding_id=7),
    ),
)
LENGTHS = Signature(
    feed=(Variable(name="x", shape=(-1,)),), fetch=(Variable(name="fetch_name_0", alias="sum", shape=(1,)),)
)
TINY = Signature(
    feed=(Variable(name="x", shape=(13,)),), fetch=(Variable(name="fetch_name_0", alias="price", shape=(1,)),)
)
PAIR = Signature(feed=(Variable(name="x", shape=(2,)),), fetch=(Variable(name="fetch_name_0", alias="y", shape=(2,)),))
CTR = Signature(
    feed=(Variable(name="dense", shape=(13,)), *(Variable(name=slot, dtype="int64", shape=(1,)) for slot in SLOTS)),
    fetch=(Variable(name="fetch_name_0", alias="ctr", shape=(1,)),),
    lookups=tuple(Lookup(feed=slot, input=f"emb_{slot}", table="emb") for slot in SLOTS),
)


def table(seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = np.arange(TABLE_ROWS, dtype=np.uint64)
    return {"keys": keys, "values": rng.standard_normal((TABLE_ROWS, DIM)).astype(np.float32)}


def pack_tiny(
    folder: Path, hub: LocalHub, *, seed: int = 1, probes: Probes | None = None, name: str = "tiny"
) -> Bundle:
    return Bundle.pack(save_tiny(folder, seed=seed), name=name, signature=TINY, probes=probes, hub=hub)


def pack_marked(folder: Path, hub: LocalHub, mark: float) -> Bundle:
    probes = Probes.model_validate(
        {"requests": [{"feed": {"x": [[1.0, 2.0]]}, "expect": {"y": [[1.0 + mark, 2.0 + mark]]}}]}
    )
    return Bundle.pack(save_marked(folder, mark), name="marked", signature=PAIR, probes=probes, hub=hub)


def pack_ctr(folder: Path, hub: LocalHub, *, seed: int = 1) -> Bundle:
    return Bundle.pack(
        save_ctr_dense(folder, seed=seed), name="ctr", signature=CTR, sparse={"emb": table(seed)}, hub=hub
    )


def ctr_feed(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feed = {"dense": rng.random((rows, 13), np.float32)}
    return feed | {slot: rng.integers(0, TABLE_ROWS, (rows, 1)) for slot in SLOTS}


def row_table(*, gaps: bool = True, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Keys 0, 2, 4 ... (or without gaps); row k is (k, k + 0.25, k + 0.5)."""
    keys = np.arange(0, 40, 2 if gaps else 1, dtype=np.uint64)
    return {"keys": keys, "values": (keys[:, None] + np.array([0, 0.25, 0.5])).astype(dtype)}


def pack_pooled(folder: Path, hub: LocalHub, *, padding_id: int = -1) -> Bundle:
    signature = Signature(
        feed=(Variable(name="ids", dtype="int64", shape=(-1,)),),
        fetch=(Variable(name="fetch_name_0", alias="sum", shape=(3,)),),
        lookups=(Lookup(feed="ids", input="rows_ids", table="t", padding_id=padding_id),),
    )
    tables = {"t": row_table(gaps=False)}
    return Bundle.pack(save_pooled(folder), name="pooled", signature=signature, sparse=tables, hub=hub)


def pack_rows(
    folder: Path, hub: LocalHub, arrays: dict[str, np.ndarray] | None = None, *, parent: Bundle | None = None
) -> Bundle:
    tables = {"t": arrays or row_table()}
    return Bundle.pack(save_rows(folder), name="rows", signature=ROWS, sparse=tables, parent=parent, hub=hub)
