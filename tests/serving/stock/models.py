"""The two models of the comparison, made from a seed, for stock Paddle Serving and for us.

`tiny` is a 13-64-1 net; `ctr` takes 13 numbers and 26 ids, reads 9 numbers per id from one table of 1000 rows and
feeds them to a 400-400-400-1 net. `ctr-dense` is `ctr` without its look-ups, and `table.npz` holds their rows.

    python models.py DIR        writes DIR/<model>/ as Paddle Serving wants it, and DIR/<model>.rows.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

SLOTS, TABLE_ROWS, DIM = 26, 1000, 9
EXAMPLES = 16
FETCH = "prob"
TYPES = {"int64": 0, "float32": 1}
FEEDS: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "tiny": {"x": ("float32", (13,))},
    "ctr": {"dense": ("float32", (13,)), **{f"C{slot}": ("int64", (1,)) for slot in range(1, SLOTS + 1)}},
    "ctr-dense": {
        "dense": ("float32", (13,)),
        **{f"rows_C{slot}": ("float32", (1, DIM)) for slot in range(1, SLOTS + 1)},
    },
}


def write(folder: Path) -> None:
    """Write all models, their tables and rows to try them with."""
    import paddle  # noqa: PLC0415 - tests need only the names above

    paddle.enable_static()
    paddle.seed(7)
    executor = paddle.static.Executor(paddle.CPUPlace())
    for name, feeds in FEEDS.items():
        program, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(program, startup):
            inputs = {feed: paddle.static.data(feed, [None, *shape], dtype) for feed, (dtype, shape) in feeds.items()}
            output = net(paddle, name, inputs)
        if name != "ctr-dense":  # it takes the parameters that `ctr` left
            executor.run(startup)
        (folder / name).mkdir(parents=True)
        paddle.static.save_inference_model(
            str(folder / name / "model"), list(inputs.values()), [output], executor, program=program
        )
        (folder / name / "serving_server_conf.prototxt").write_text(conf(feeds))
    table = np.array(paddle.static.global_scope().find_var("table").get_tensor())
    np.savez(folder / "table.npz", keys=np.arange(TABLE_ROWS, dtype=np.uint64), values=table)
    for name in ("tiny", "ctr"):
        rows = example_rows(name)
        expect = run_each(load(folder / name), rows)
        (folder / f"{name}.rows.json").write_text(json.dumps({"rows": rows, "expect": expect}))


def net(paddle: Any, name: str, inputs: dict[str, Any]) -> Any:
    def dense(x: Any, width: int, activation: str | None, layer: str) -> Any:
        owner = name.removesuffix("-dense")
        names = {"weight_attr": f"{owner}.{layer}.w", "bias_attr": f"{owner}.{layer}.b"}
        return paddle.static.nn.fc(x, width, activation=activation, **names)

    if name == "tiny":
        return dense(dense(inputs["x"], 64, "relu", "0"), 1, "sigmoid", "1")
    rows = [value for feed, value in inputs.items() if feed != "dense"]
    if name == "ctr":
        table = paddle.static.create_parameter([TABLE_ROWS, DIM], "float32", name="table")
        rows = [paddle.nn.functional.embedding(ids, table) for ids in rows]
    x = paddle.concat([inputs["dense"], *(paddle.reshape(row, [-1, DIM]) for row in rows)], axis=1)
    for layer in range(3):
        x = dense(x, 400, "relu", str(layer))
    return dense(x, 1, "sigmoid", "3")


def conf(feeds: dict[str, tuple[str, tuple[int, ...]]]) -> str:
    """Write what Paddle Serving reads beside a model."""

    def variable(kind: str, name: str, dtype: str, shape: tuple[int, ...]) -> str:
        dims = "".join(f"  shape: {dim}\n" for dim in shape)
        head = f'  name: "{name}"\n  alias_name: "{name}"\n  is_lod_tensor: false\n'
        return f"{kind}_var {{\n{head}  {kind}_type: {TYPES[dtype]}\n{dims}}}\n"

    return "".join(variable("feed", name, *rest) for name, rest in feeds.items()) + variable(
        "fetch", FETCH, "float32", (1,)
    )


def example_rows(name: str) -> list[dict[str, Any]]:
    rng = np.random.default_rng(11)
    draw = {
        "float32": lambda shape: rng.random((1, *shape)).round(4).tolist(),
        "int64": lambda shape: rng.integers(0, TABLE_ROWS, (1, *shape)).tolist(),
    }
    return [{feed: draw[dtype](shape) for feed, (dtype, shape) in FEEDS[name].items()} for _ in range(EXAMPLES)]


def load(model: Path) -> Any:
    """Load a model as our runtime does, in this process."""
    import paddle  # noqa: PLC0415
    from paddle import inference  # noqa: PLC0415

    paddle.set_flags({"FLAGS_eager_delete_tensor_gb": -1.0})  # what costs small models more than their operators do
    config = inference.Config(str(model / "model.json"), str(model / "model.pdiparams"))
    config.disable_gpu()
    config.disable_mkldnn()
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(1)
    return inference.create_predictor(config)


def arrays(row: dict[str, Any]) -> dict[str, np.ndarray]:
    """Make a row's arrays, whole numbers being ids."""
    given = {name: np.asarray(value) for name, value in row.items()}
    return {name: value.astype("int64" if value.dtype.kind == "i" else "float32") for name, value in given.items()}


def run(predictor: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    for name, array in inputs.items():
        predictor.get_input_handle(name).copy_from_cpu(array)
    predictor.run()
    (output,) = predictor.get_output_names()
    return predictor.get_output_handle(output).copy_to_cpu()


def run_each(predictor: Any, rows: list[dict[str, Any]]) -> list[Any]:
    return [run(predictor, arrays(row)).tolist() for row in rows]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
