"""A model small enough to compute by hand, behind the same interface as the real runtime."""

import asyncio
from dataclasses import replace

import numpy as np

from cloudedge.bundle import Signature
from cloudedge.errors import DeadlineExceeded, InputError, NotFound
from cloudedge.serving.engine import Answer, HttpCall

PRICE = Signature.model_validate(
    {
        "feed": [{"name": "x", "shape": [2]}],
        "fetch": [{"name": "fc_0.tmp_1", "alias": "price", "shape": [1]}, {"name": "rank", "dtype": "int64"}],
    }
)
PIN = "sha256:" + "ab" * 32


class TinyEngine:
    """price = sum of a row of x; rank = the row's number. With other signatures: every fetch is the first feed."""

    def __init__(self, signature=PRICE, fail=None):
        self.signature = signature
        self.fail = fail
        self.calls = []

    def hold(self, tag=None):
        if tag not in (None, "a"):
            raise NotFound(f"there is no variant {tag!r} here")
        return TinyHeld(self, tag)

    async def predict(self, call):
        self.calls.append(call)
        await asyncio.sleep(0)
        if self.fail is not None:
            raise self.fail
        if call.deadline is not None and call.deadline < asyncio.get_running_loop().time():
            raise DeadlineExceeded("the deadline passed before the call was begun")
        feeds = {v.alias or v.name: v for v in self.signature.feed}
        if set(call.feed) != set(feeds):
            raise InputError(f"invalid arg list: the model takes {sorted(feeds)}, got {sorted(call.feed)}")
        for name, array in call.feed.items():
            want = feeds[name].shape
            fits = array.ndim == len(want) + 1 and all(w in (-1, g) for w, g in zip(want, array.shape[1:], strict=True))
            if not fits:
                raise InputError(f"variable {name!r} has shape {list(array.shape)}, the model takes [-1, {want}]")
        names = call.fetch or [v.alias or v.name for v in self.signature.fetch]
        return Answer({name: self.output(name, call.feed) for name in names}, PIN, call.tag or "")

    def output(self, name, feed):
        if self.signature is not PRICE:
            return next(iter(feed.values()))
        x = feed["x"]
        return x.sum(1, keepdims=True) if name == "price" else np.arange(len(x))


class TinyHeld:
    def __init__(self, engine, tag):
        self.engine, self.tag, self.signature = engine, tag, engine.signature

    async def predict(self, call):
        return await self.engine.predict(replace(call, tag=self.tag))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def post(path, body, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpCall("POST", path, names, body if isinstance(body, bytes) else body.encode())


def run(coroutine):
    return asyncio.run(coroutine)
