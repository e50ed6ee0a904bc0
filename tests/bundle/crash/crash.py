"""Kills cloudedge between any two of its lines, and looks at what is left.

Run as a program: ``python -m tests.bundle.crash.crash FIRST_SEED SEEDS FOLDER [OPERATION...]``. Each seed picks an
operation and a line number; a forked child runs the operation and sends itself SIGKILL when it gets there. Then
everything that is listed has to verify, and the same operation, run again, has to finish. Prints what went wrong as
JSON; a seed repeats.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import cloudedge
from cloudedge.bundle import Bundle
from cloudedge.hub import LocalHub, collect, copy, current
from tests.models import change_table, make_model, make_table

OURS = str(Path(cloudedge.__file__).parent)
AT = "2026-01-01T00:00:00Z"


class World:
    """A local hub with three versions, a far one with the first, and a model about to be packed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.near, self.far, self.fresh = (LocalHub(root / name) for name in ("near", "far", "fresh"))

    @classmethod
    def make(cls, root: Path) -> World:
        world = cls(root)
        model = make_model(root / "model")
        for i in range(3):
            (model / "step").write_text(str(i))
            table = make_table(400) if i == 0 else change_table(make_table(400), seed=i, share=0.1)
            parent = f"ctr:{i}" if i else None
            Bundle.pack(model, name="ctr", sparse={"dict": table}, parent=parent, hub=world.near)
        world.send(world.near, world.far, "1", ["1", "prod"])
        world.near.move_tag("ctr", "3", None, by="me", at=AT)
        (model / "step").write_text("next")
        return world

    def send(self, source: LocalHub, target: LocalHub, version: str, tags: list[str]) -> None:
        digest = current(source.tags("ctr"), version).target.digest
        copy(source, target, "ctr", digest, tags=tags, by="me", at=AT, jobs=2)

    def pack(self) -> None:
        table = change_table(make_table(400), seed=9, share=0.1)
        Bundle.pack(self.root / "model", name="ctr", version=7, sparse={"dict": table}, parent="ctr:2", hub=self.near)

    def push(self) -> None:
        self.send(self.near, self.far, "2", ["2", "prod"])

    def pull(self) -> None:
        self.send(self.near, self.fresh, "2", ["2"])

    def tag(self) -> None:
        self.near.move_tag("ctr", "prod", current(self.near.tags("ctr"), "2").target, by="me", at=AT)

    def gc(self) -> None:
        collect(self.near, now=datetime.now(timezone.utc), retention=timedelta(0), dry_run=False)

    def careless_push(self) -> None:
        """What a push must not be: the reference first, the bytes later. The harness has to catch it."""
        target = current(self.near.tags("ctr"), "2").target
        raw = self.near.read_manifest("ctr", target.digest).raw
        self.far.store.put("blobs/sha256/" + target.digest.removeprefix("sha256:"), raw)
        self.far.move_tag("ctr", "2", target, by="me", at=AT)
        self.push()

    def check(self) -> None:
        """Everything that is listed, anywhere, is whole."""
        for hub in (self.near, self.far, self.fresh):
            for name in hub.names():
                entries = hub.tags(name)
                for entry in entries:
                    if entry.is_current:
                        Bundle(hub, name, hub.read_manifest(name, entry.target.digest)).verify(deep=True)
                for tag in {entry.tag for entry in entries}:
                    numbers = [entry.seq for entry in entries if entry.tag == tag]
                    assert len(set(numbers)) == len(numbers), f"{tag}: {numbers}"

    def check_done(self, operation: str) -> None:
        """The operation had its effect, and left nothing behind."""
        self.check()
        if operation == "pack":
            assert Bundle.open("ctr:7", hub=self.near).lineage.parent.version == "2"
        elif operation in ("push", "careless_push"):
            assert {e.tag for e in self.far.tags("ctr") if e.is_current} == {"1", "2", "prod"}
            assert Bundle.open("ctr:prod", hub=self.far).version == "2"
        elif operation == "pull":
            assert Bundle.open("ctr", hub=self.fresh).version == "2"
        elif operation == "tag":
            assert [e.seq for e in self.near.tags("ctr") if e.tag == "prod"] == [1]
        else:
            needed = {e.target.digest for e in self.near.tags("ctr")}
            for digest in list(needed):
                needed |= {blob.digest for blob in self.near.read_manifest("ctr", digest).blobs}
            assert {item.digest for item in self.near.stored()} == needed


OPERATIONS = ["pack", "push", "pull", "tag", "gc"]


def run_in_child(action: Callable[[], None], die_at: int | None) -> int | None:
    """Run an action in a child that kills itself before its `die_at`-th line of ours.

    Returns:
        How many lines it ran, or None if it was killed.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal count
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            if event == "line":
                count += 1
                if count == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        threading.settrace(trace)
        sys.settrace(trace)
        try:
            action()
        except BaseException:  # noqa: BLE001 - a child must not return into its parent's code
            traceback.print_exc()
            os._exit(1)
        os.write(write_end, str(count).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        ran = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    assert os.WEXITSTATUS(status) == 0, "the operation failed by itself"
    return int(ran)


def main(first: int, seeds: int, root: Path, operations: list[str]) -> dict[str, Any]:
    template = World.make(root / "template")
    lines: dict[str, int] = {}
    for operation in operations:
        shutil.copytree(template.root, root / "count")
        lines[operation] = run_in_child(getattr(World(root / "count"), operation), None)
        shutil.rmtree(root / "count")
    failures, kills = [], 0
    for seed in range(first, first + seeds):
        rng = random.Random(seed)
        operation = operations[seed % len(operations)]
        here = root / "world"
        shutil.copytree(template.root, here)
        world = World(here)
        points = [rng.randrange(1, lines[operation]) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        try:
            for point in points:
                kills += run_in_child(getattr(world, operation), point) is None
                world.check()
            getattr(world, operation)()
            world.check_done(operation)
        except Exception as error:  # noqa: BLE001 - the next seeds want their turn
            failures.append(f"seed {seed}: {operation}, killed at {points}: {type(error).__name__}: {error}")
        shutil.rmtree(here)
    return {"failures": failures, "kills": kills, "lines": lines}


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:] or OPERATIONS))
    )
