"""A local target of real processes: versions of a small model to release there, and a load that checks every answer."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from cloudedge.bundle import Bundle, Lookup, Probes, Signature, Variable
from cloudedge.config import load as load_config
from cloudedge.hub import LocalHub
from cloudedge.release import Target
from cloudedge.release.local import find_processes, process_states, serving_urls, target_folder, up
from cloudedge.serving import Client
from tests.serving.models import _save as save_model

NAME = "local"
ROWS, DIM, CHANGED = 4000, 4, 40
"""Of a table's rows, those that differ in every version are asked for."""
ASKED = 4
CONFIG = {
    "targets": {
        NAME: {
            "kind": "local",
            "sparse": {"tables": ["embedding"], "shards": 2, "replicas": 2},
            "dense": {"replicas": 2, "service": "pair"},
        }
    }
}


@dataclass(frozen=True)
class Made:
    """A version, and what the whole model answers for every id."""

    bundle: Bundle
    answers: np.ndarray

    @property
    def pin(self) -> str:
        return self.bundle.pin

    @property
    def ref(self) -> str:
        return f"{self.bundle.name}@{self.bundle.digest}"


def make(folder, number, *, shift=None, rows=ROWS, dim=DIM, dtype="float32", parent=None, wrong_probes=False) -> Made:
    """Pack a version: a row plus a parameter. Both tell the version, so an answer made of two versions fits neither."""
    dense = number / 64 if shift is None else shift
    keys = np.arange(rows, dtype=np.uint64)
    values = np.random.default_rng(1).integers(-256, 256, (rows, dim)).astype(np.float32) / 64
    values[: rows // 100] += number / 4  # one row in a hundred changes from version to version
    table = {"keys": keys, "values": values.astype(dtype)}
    if dtype == "int8":
        table["values"] = np.random.default_rng(1).integers(-128, 128, (rows, dim), dtype=np.int8)
        table["values"][: rows // 100] ^= np.int8(number)
        table["scale"] = np.float32(2) ** -(np.arange(rows) % 6).astype(np.float32)
        values = table["values"].astype(np.float32) * table["scale"][:, None]
    answers = values + np.float32(dense)  # every number is a multiple of 1/64: equal means equal

    def build(p):
        rows = p.static.data("rows", [-1, 1, dim], "float32")
        constant = p.nn.initializer.Constant(dense)
        return [rows], [p.reshape(rows, [-1, dim]) + p.create_parameter([dim], "float32", default_initializer=constant)]

    save_model(folder, build, 1)
    signature = Signature(
        feed=(Variable(name="ids", dtype="int64", shape=(1,)),),
        fetch=(Variable(name="fetch_name_0", alias="y", shape=(dim,)),),
        lookups=(Lookup(feed="ids", input="rows", table="embedding"),),
    )
    expected = answers[:2] + (1 if wrong_probes else 0)
    probe = {"feed": {"ids": [[0], [1]]}, "expect": {"y": expected.tolist()}}
    bundle = Bundle.pack(
        folder,
        name="pair",
        sparse={"embedding": table},
        signature=signature,
        probes=Probes.model_validate({"requests": [probe]}),
        parent=parent.bundle if parent else None,
        hub=LocalHub(),
    )
    return Made(bundle, answers)


@dataclass
class Load:
    """Clients that never stop asking while the block lasts, and compare every answer with the whole model's."""

    urls: list[str]
    expected: dict[str, np.ndarray]
    clients: int = 2
    pause_s: float = 0.002
    failed: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    answered: list[tuple[float, float, str]] = field(default_factory=list)
    """When, after how many seconds, by which version."""

    def __enter__(self):
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(self.clients)]
        for thread in self._threads:
            thread.start()
        self.until(10)
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until(self, more: int, pin: str | None = None) -> None:
        """Wait until so many more requests were answered, by a version if one is named."""
        start = len(self.answered)
        wait(
            lambda: sum(pin in (None, each[2]) for each in self.answered[start:]) >= more or self.failed, "answers", 120
        )

    def _ask(self, number: int) -> None:
        rng = np.random.default_rng(number)
        with Client(*self.urls) as client:
            while not self._stop.wait(self.pause_s):
                ids = rng.integers(0, CHANGED, (ASKED, 1))
                begun = time.monotonic()
                try:
                    answer = client.predict({"ids": ids})
                    right = self.expected[answer.pin][ids[:, 0]]
                except Exception as error:  # noqa: BLE001 - whatever a client gets that is no answer, it has failed
                    self.failed.append(f"{type(error).__name__}: {error}")
                    continue
                self.answered.append((time.monotonic(), time.monotonic() - begun, answer.pin))
                if not np.array_equal(answer.outputs["y"], right):
                    self.mixed.append(f"{answer.pin} answered {answer.outputs['y'].tolist()}, not {right.tolist()}")

    @property
    def broken(self) -> tuple[list[str], list[str]]:
        """What must stay empty: failed requests and mixed answers."""
        return self.failed[:3], self.mixed[:3]


class World:
    """A target that is up, and versions to release there."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.config_file = folder / "cloudedge.yaml"
        self.config_file.write_text(yaml.safe_dump(CONFIG))
        self.config = load_config(self.config_file)
        first = make(folder / "v1", 1)
        self.good = [first, *(make(folder / f"v{n}", n, parent=first) for n in range(2, 6))]
        self.spoiled = make(folder / "spoiled", 6, parent=first, wrong_probes=True)
        self.drifting = make(folder / "drifting", 7, shift=100.0, parent=first)
        self.made = [*self.good, self.spoiled, self.drifting]
        self.target = Target.load(NAME, config=self.config)
        self.folder = target_folder(NAME, config=self.config)

    def cut_anew(self, shards: int) -> None:
        """Change the number of shards in cloudedge.yaml, and bring up what is new in it."""
        sparse = CONFIG["targets"][NAME]["sparse"] | {"shards": shards}
        target = CONFIG["targets"][NAME] | {"sparse": sparse}
        self.config_file.write_text(yaml.safe_dump({"targets": {NAME: target}}))
        self.config = load_config(self.config_file)
        up(NAME, config=self.config)
        self.journal.close()
        self.target = Target.load(NAME, config=self.config)

    @property
    def journal(self):
        return self.target._context.journal

    @property
    def live(self) -> Made:
        life = self.target.status().live
        return next(made for made in self.made if made.pin == life.pin)

    def fresh(self) -> Made:
        """Return a version that no place has."""
        loaded = {pin for place in self.target.status().places for pin in place.versions}
        return next(made for made in self.good if made.pin not in loaded)

    def load(self) -> Load:
        return Load(serving_urls(NAME, config=self.config), {each.pin: each.answers for each in self.made})

    def release(self, made: Made, **choices):
        return self.target.apply(self.target.plan(made.bundle, **choices)).wait()

    def heal(self) -> None:
        """Bring the target back to where a release can begin: every process there, nothing unfinished."""
        wait(self.all_there, "every process to answer", 60)
        self.target.resume()

    def all_there(self) -> bool:
        return all(place.state != "away" for place in self.target.status().places)

    def pids(self) -> dict[str, int]:
        return find_processes(self.folder)

    def states(self):
        return process_states(self.folder)

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "CLOUDEDGE_HOME": str(self.home), "CLOUDEDGE_CONFIG": str(self.config_file), **more}

    def command(self, *words: str, program=("-m", "cloudedge"), **more):
        """Start cloudedge as a process of its own."""
        environment = {key: more.pop(key) for key in [*more] if key.isupper()}
        return subprocess.Popen(
            [sys.executable, *program, *words],
            env=self.environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def entries(self) -> int:
        """Count the journal's entries, as somebody else would."""
        with closing(sqlite3.connect(f"file:{self.journal.path}?mode=ro", uri=True)) as db:
            return db.execute("SELECT count(*) FROM entries").fetchone()[0]

    def intended(self, *steps: str, what: str = "intent"):
        """Return something that tells whether one of some steps has been intended since now."""
        before = self.journal.newest(steps, what)
        return lambda: (now := self.journal.newest(steps, what)) is not None and (not before or now.id > before.id)


@contextmanager
def home(folder: Path):
    """Let cloudedge keep its things in a folder, and put everything back afterwards."""
    before = os.environ.get("CLOUDEDGE_HOME")
    os.environ["CLOUDEDGE_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("CLOUDEDGE_HOME")
        if before is not None:
            os.environ["CLOUDEDGE_HOME"] = before


def wait(condition, what: str, within_s: float = 120.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"waited {within_s:.0f} s for {what}"
        time.sleep(0.002)
