"""Networks as people train them, each saved for real: what the splitter is tried on."""

import os
import subprocess
import sys
import warnings

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Paddle misses a compiler cache, and says so
    import paddle
    from paddle import nn
    from paddle.nn import functional as F  # noqa: N812 - as everybody calls it

DENSE = 4


def spec(name, *shape, dtype="int64"):
    return paddle.static.InputSpec([None, *shape], dtype, name)


class WideDeep(nn.Layer):
    """Two tables of different width, three slots, a dense input."""

    slots = ("user", "item", "city")

    def __init__(self):
        super().__init__()
        self.wide = nn.Embedding(60, 1, sparse=True)
        self.deep = nn.Embedding(60, 6, sparse=True)
        self.tower = nn.Sequential(nn.Linear(3 * 6 + DENSE, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))

    def forward(self, user, item, city, dense):
        ids = [user, item, city]
        wide = sum(self.wide(each).sum(axis=1) for each in ids)
        deep = self.tower(paddle.concat([self.deep(each).flatten(1) for each in ids] + [dense], axis=1))
        return F.sigmoid(wide + deep)

    @classmethod
    def specs(cls):
        return [*(spec(slot, 1) for slot in cls.slots), spec("dense", DENSE, dtype="float32")]


class DeepFM(nn.Layer):
    """All slots side by side before the look-up, first and second order."""

    slots = ("c1", "c2", "c3", "c4")

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(80, 1), nn.Embedding(80, 5)
        self.dnn = nn.Sequential(nn.Linear(4 * 5 + DENSE, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, c1, c2, c3, c4, dense):
        ids = paddle.concat([c1, c2, c3, c4], axis=1)
        rows = self.second(ids)
        squares = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True)
        deep = self.dnn(paddle.concat([rows.flatten(1), dense], 1))
        return F.sigmoid(self.first(ids).sum(1) + squares + deep), deep

    @classmethod
    def specs(cls):
        return [*(spec(slot, 1) for slot in cls.slots), spec("dense", DENSE, dtype="float32")]


class SharedTable(nn.Layer):
    """One table for several slots, with ids of rank 1."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.out = nn.Linear(16, 2)

    def forward(self, seen, clicked):
        return F.softmax(self.out(paddle.concat([self.table(seen), self.table(clicked)], 1)))

    @classmethod
    def specs(cls):
        return [spec("seen"), spec("clicked")]


class History(nn.Layer):
    """A slot of any length, padded, pooled by mean in the network; int32 ids; a slot looked up twice in one table."""

    def __init__(self):
        super().__init__()
        self.items, self.users = nn.Embedding(70, 8, padding_idx=0), nn.Embedding(90, 3, padding_idx=89)
        self.out = nn.Linear(8 + 8 + 3, 1)

    def forward(self, hist, item, user):
        kept = (hist != 0).astype("float32").unsqueeze(-1)
        pooled = (self.items(hist.astype("int64")) * kept).sum(1) / kept.sum(1).clip(min=1.0)
        best = self.items(hist.astype("int64")).max(1) * 0.1
        return self.out(paddle.concat([pooled + best, self.items(item), self.users(user.squeeze(-1))], axis=1))

    @classmethod
    def specs(cls):
        return [spec("hist", None, dtype="int32"), spec("item", dtype="int32"), spec("user", 1)]


class Moved(nn.Layer):
    """Ids that are cast, reshaped, squeezed, turned and joined on their way to the look-up."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Embedding(40, 4), nn.Embedding(30, 2, padding_idx=3)

    def forward(self, x, y, z):
        turned = self.a(x.transpose([0, 2, 1]).flatten(1).unsqueeze([-1, 0])).squeeze([0, 3])  # [B, 6, 4]
        flat = self.b(y.reshape([-1])).reshape([-1, 4, 2])
        joined = self.a(paddle.concat([y.astype("int64"), z.squeeze(1)], axis=-1))  # [B, 4 + L, 4]
        return turned.sum([1, 2]) + flat.sum([1, 2]) * joined.mean([1, 2])

    @classmethod
    def specs(cls):
        return [spec("x", 2, 3), spec("y", 4, dtype="int32"), spec("z", 1, None)]


class NoEmbeddings(nn.Layer):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DENSE, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, dense):
        return self.net(dense)

    @classmethod
    def specs(cls):
        return [spec("dense", DENSE, dtype="float32")]


class Tied(nn.Layer):
    """An embedding that is the output layer too, beside one that is not."""

    def __init__(self):
        super().__init__()
        self.words, self.tags = nn.Embedding(25, 6), nn.Embedding(20, 6)

    def forward(self, word, tag):
        return paddle.matmul(self.words(word) + self.tags(tag), self.words.weight, transpose_y=True)

    @classmethod
    def specs(cls):
        return [spec("word"), spec("tag")]


class Hashed(nn.Layer):
    """Ids that are computed: no slot holds what is looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, 4)

    def forward(self, raw):
        return self.table(raw % 30).sum(1)

    @classmethod
    def specs(cls):
        return [spec("raw")]


class Positions(nn.Layer):
    """Ids that nobody feeds."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, DENSE)

    def forward(self, dense):
        return dense + self.table(paddle.arange(4, dtype="int64")).sum(0)

    @classmethod
    def specs(cls):
        return [spec("dense", DENSE, dtype="float32")]


class Half(nn.Layer):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, DENSE, weight_attr=None)
        self.table.to(dtype="float64")

    def forward(self, ids):
        return self.table(ids).sum(1)

    @classmethod
    def specs(cls):
        return [spec("ids")]


class FloatIds(nn.Layer):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, DENSE)

    def forward(self, ids):
        return self.table(ids.astype("int64")).sum(1)

    @classmethod
    def specs(cls):
        return [spec("ids", dtype="float32")]


class Shifted(nn.Layer):
    """Answers that a wrong cut would change: what the check is checked with."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, DENSE)

    def forward(self, ids, dense):
        return self.table(ids).sum(1) + dense.log().sum(1)

    @classmethod
    def specs(cls):
        return [spec("ids"), spec("dense", DENSE, dtype="float32")]


class Branched(nn.Layer):
    """A look-up that is made only where the inputs ask for it."""

    def __init__(self):
        super().__init__()
        self.table, self.other = nn.Embedding(30, DENSE), nn.Embedding(25, DENSE)

    def forward(self, ids, dense):
        if dense.sum() > 0:
            dense = dense + self.table(ids)
        return dense + self.other(ids)

    @classmethod
    def specs(cls):
        return [spec("ids"), spec("dense", DENSE, dtype="float32")]


class Foreign(nn.Layer):
    """A look-up in a table of which every device has a part."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, DENSE)

    def forward(self, ids):
        return paddle._C_ops.c_embedding(self.table.weight, ids, 0, 30)

    @classmethod
    def specs(cls):
        return [spec("ids", 1)]


class NoParameters(nn.Layer):
    def forward(self, dense):
        return (dense * 2 + 1).sum(1)

    @classmethod
    def specs(cls):
        return [spec("dense", DENSE, dtype="float32")]


def save(network, folder):
    """Build a network from a seed and save it; returns its prefix."""
    prefix = folder / network.__name__ / "model"
    paddle.seed(7)
    layer = network()
    layer.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paddle.jit.save(layer, str(prefix), input_spec=network.specs())
    return prefix


OLD = """
import sys
import paddle
paddle.enable_static()
paddle.seed(11)
main, start = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, start):
    user = paddle.static.data("user", [-1, 1], "int64")
    hist = paddle.static.data("hist", [-1, -1], "int32")
    tags = paddle.static.data("tags", [-1, 2], "int64")
    dense = paddle.static.data("dense", [-1, 4], "float32")
    items, users = paddle.nn.Embedding(50, 8, padding_idx=0), paddle.nn.Embedding(40, 3)
    pooled = paddle.mean(items(paddle.cast(hist, "int64")), 1)
    both = users(paddle.concat([paddle.unsqueeze(tags, 1), paddle.reshape(tags, [-1, 1, 2])], 1))
    parts = [users(paddle.squeeze(user, -1)), pooled, dense, paddle.flatten(both, 1)]
    if sys.argv[2] == "hashed":
        parts.append(users(paddle.scale(user, 1))[:, 0])
    x = paddle.concat(parts, 1)
    out = paddle.nn.functional.softmax(paddle.nn.Linear(x.shape[1], 3)(x))
    if sys.argv[2] == "looped":
        zero, one = paddle.full([1], 0, "int64"), paddle.full([1], 1, "int64")
        looped = lambda at, so_far: [at + one, so_far + users(user)[:, 0]]
        _, out = paddle.static.nn.while_loop(lambda at, so_far: at < one, looped, [zero, out])
    if sys.argv[2] == "foreign":
        made = main.current_block().create_var(name="made", dtype="float32", shape=[-1, 1, 8])
        given = {"W": [items.weight], "Ids": [user]}
        main.current_block().append_op(
            type="c_embedding", inputs=given, outputs={"Out": [made]}, attrs={"start_index": 0, "vocab_size": 50}
        )
        out = out + paddle.mean(made)
    feeds = [user, hist, tags, dense]
    if sys.argv[2] == "bare":
        feeds, out, pooled = [dense], dense * 2, dense + 1
    if sys.argv[2] == "tied":
        out = out + paddle.mm(paddle.nn.Linear(3, 40)(out), users.weight)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(start)
    paddle.static.save_inference_model(sys.argv[1], feeds, [out, pooled], executor)
"""


def save_old(kind, folder):
    """Save an old program, which takes a process that switched PIR off before Paddle came up."""
    prefix = folder / f"old-{kind}" / "model"
    environment = os.environ | {"FLAGS_enable_pir_api": "0"}
    command = [sys.executable, "-W", "ignore", "-c", OLD, str(prefix), kind]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return prefix


def predict(prefix, feed):
    """Ask a saved model, by input name; returns its answers in order."""
    program = next(file for s in (".json", ".pdmodel") if (file := prefix.with_name(prefix.name + s)).exists())
    parameters = prefix.with_suffix(".pdiparams")
    config = paddle.inference.Config(str(program), str(parameters) if parameters.exists() else "")
    config.disable_glog_info()
    config.disable_mkldnn()
    predictor = paddle.inference.create_predictor(config)
    for name in predictor.get_input_names():
        array = np.ascontiguousarray(feed[name])
        handle = predictor.get_input_handle(name)
        handle.reshape(array.shape)
        handle.copy_from_cpu(array)
    predictor.run()
    return [predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()]
