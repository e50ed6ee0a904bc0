"""The CTR example: train, split, pack, release, predict, update under load, survive, undo, roll back, report.

Everything runs on this machine and writes to ``out/ctr``. The same steps by hand are in README.md beside this file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from clicks import auc, draw
from load import Load, p99_ms, timeline
from network import Trainer
from numpy.typing import NDArray
from places import Watcher
from report import render
from rich.console import Console

from cloudedge import Bundle, LocalHub, Target
from cloudedge.bundle import Lineage, Probes, split
from cloudedge.config import load as load_config
from cloudedge.release import ReleaseUndone
from cloudedge.release.local import down, find_processes, serving_urls, target_folder, up
from cloudedge.serving import Client

OUT = Path("out/ctr")
TARGET = "local"
_QUIET_S = 3.0
"""How long the load runs before and after each thing that happens to it, so that there is something to compare."""
_CUBE_ROW_BYTES = 20
"""Of a row in a shard's files beside its value: key and address in the index, length in the data."""
_PROMISED_S = 300.0
"""From clicks to rollback, on two cores."""
_CONSOLE = Console(highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    """Tell the person at the terminal."""
    _CONSOLE.print(text)


@dataclass
class Packed:
    """A version of the model: the bundle, and what the whole network answers."""

    bundle: Bundle
    auc: float
    scores: NDArray[np.float32]
    """Of the test impressions."""

    @property
    def ref(self) -> str:
        """What people call it."""
        return f"{self.bundle.name}:{self.bundle.version}"


class Example:
    """The steps, in order; what they find out ends up in the report."""

    def __init__(self) -> None:
        self.hub = LocalHub()
        self.config = load_config(Path(__file__).with_name("cloudedge.yaml"))
        self.test = draw(10_000, seed=3)
        self.asked = self.test[slice(0, 200)]
        self.trainer = Trainer()
        self.versions: list[Packed] = []
        self.served: dict[str, tuple[float, float]] = {}
        self.releases: dict[int, dict[str, Any]] = {}
        self.story: list[dict[str, Any]] = []
        self.rollback_s = 0.0

    # 1, 2, 3: a model.

    def pack(self, name: str, parent: Packed | None = None) -> Packed:
        """Save the network, split it, pack it and push it to the hub."""
        folder = OUT / name
        saved = self.trainer.save(folder / "whole")
        pieces = split(saved, folder / "pieces")
        scores = self.trainer.score(self.test)
        found = auc(self.test.clicked, scores)
        bundle = Bundle.pack(
            pieces.folder,
            name="ctr",
            sparse=pieces.tables,
            signature=pieces.signature,
            probes=pieces.probes,
            lineage=Lineage(dataset="examples/ctr/clicks.py", metrics={"auc": found}),
            parent=parent.bundle if parent else None,
            hub=self.hub,
        )
        sent = bundle.push(self.config.hubs["office"])
        packed = Packed(bundle, found, scores)
        self.versions.append(packed)
        rows = bundle.sparse["embedding"]
        say(
            f"   {packed.ref}  AUC {found:.4f}  {len(rows):,} rows of {rows.kind.dim}  "
            f"{bundle.size_bytes / 1e6:.1f} MB, sent {sent.bytes_missing / 1e6:.2f} MB to the hub"
        )
        return packed

    # 4: served as trained.

    def compare(self, version: Packed) -> None:
        """Score the test impressions over HTTP and compare with the whole network."""
        served = []
        with Client(*serving_urls(TARGET, config=self.config)) as client:
            for start in range(0, len(self.test), 500):
                batch = self.test[slice(start, start + 500)]
                answer = client.predict({"dense": batch.dense, "ids": batch.ids})
                if answer.pin != version.bundle.pin:
                    raise SystemExit(f"{answer.pin} answered, not {version.ref}")
                served.append(next(iter(answer.outputs.values())).reshape(-1))
        scores = np.concatenate(served)
        difference = float(np.abs(scores - version.scores).max())
        self.served[version.bundle.pin] = (auc(self.test.clicked, scores), difference)
        say(
            f"   {version.ref} over HTTP: AUC {self.served[version.bundle.pin][0]:.4f} (trained: {version.auc:.4f}), "
            f"largest difference to the whole model {difference:.1e}"
        )

    # 5, 7: releases under load.

    def release(self, target: Target, version: Packed, load: Load) -> int:
        """Release a version, and note what it cost; return its number."""
        outcome, why = "done", ""
        with self.happens(load, f"release {version.ref}", f"cloudedge release {version.ref} --to {TARGET}") as told:
            try:
                number = target.apply(target.plan(version.bundle)).wait().number
            except ReleaseUndone as undone:
                number, outcome, why = undone.number, "undone", undone.why
        began, ended = told["from"], told["to"]
        record = next(r for r in target.history() if r.number == number)
        shipped, full = record.bytes / 1e6, self.full_bytes(version) / 1e6
        reached = sum(one.pin == version.bundle.pin for one in load.answered)
        undone_as = f"taken back by itself as {why.partition(':')[0]} failed; {reached} requests reached it"
        told["became"] = f"{version.ref} answers everywhere" if outcome == "done" else undone_as
        told["became"] += f"; {shipped:.2f} MB shipped" + (f", everything would be {full:.1f} MB" if number > 1 else "")
        self.releases[number] = {
            "bundle": version.ref,
            "outcome": outcome,
            "why": why,
            "note": "",
            "seconds": ended - began,
            "bytes_shipped": record.bytes,
            "bytes_full": self.full_bytes(version),
            "began": began,
            "ended": ended,
        }
        took = f"{outcome} in {ended - began:.2f} s"
        say(f"   release {number} of {version.ref}: {took}, shipped {shipped:.2f} MB of {full:.1f} MB")
        if why:
            say(f"   because: {why}")
        return number

    def quiet(self, load: Load, number: int) -> None:
        """Let the load run on for a while, then say what those who asked noticed of a release."""
        time.sleep(_QUIET_S)
        release, answered = self.releases[number], load.answered
        began, ended = release["began"], release["ended"]
        release["p99_ms_before"] = p99_ms(answered, began - _QUIET_S, began)
        release["p99_ms_during"] = p99_ms(answered, began, ended)
        release["p99_ms_after"] = p99_ms(answered, ended, ended + _QUIET_S)
        told = ", ".join(
            f"{when} {value:.1f} ms" for when in ("before", "during", "after") if (value := release[f"p99_ms_{when}"])
        )
        if release["p99_ms_during"] is None:
            release["note"] = "Nothing was live before it, so nobody asked before and during it."
        failed, mixed = sum(not one.pin for one in answered), sum(one.is_mixed for one in answered)
        say(f"   {len(answered):,} requests so far, {failed} failed, {mixed} mixed; p99 {told}")

    def full_bytes(self, version: Packed) -> int:
        """Return what shipping everything to every place would cost."""
        section = self.config.targets[TARGET]
        rows = sum(len(t) * (_CUBE_ROW_BYTES + t.kind.row_bytes) for t in version.bundle.sparse.values())
        dense = sum(layer.size for layer in version.bundle.dense_layers.values())
        sparse_replicas = section.sparse.replicas if section.sparse else 0
        return rows * sparse_replicas + dense * (section.dense.replicas if section.dense else 0)

    @contextmanager
    def happens(self, load: Load, what: str, command: str) -> Iterator[dict[str, Any]]:
        """Remember from when to when something happened, and what became of it."""
        told: dict[str, Any] = {"what": what, "command": command, "from": load.now(), "became": ""}
        yield told
        told["to"] = load.now()
        self.story.append(told)

    # 6: kills.

    def kill(self, target: Target, load: Load, process: str, what: str) -> None:
        """Kill a process as a power cut would, and wait until it answers as it did."""
        folder = target_folder(TARGET, config=self.config)
        before = find_processes(folder)[process]
        with self.happens(load, f"kill {what}", f"kill -9 {before}") as told:
            began = time.monotonic()
            os.kill(before, signal.SIGKILL)
            _until(lambda: find_processes(folder).get(process) not in {None, before}, f"{process} to come back")
            say(f"   killed {process}; a new one runs after {time.monotonic() - began:.1f} s")
            _until(lambda: target.status().is_whole, "every place to answer with the live version")
        meanwhile = [one for one in load.answered if told["from"] <= one.at < told["to"]]
        failed = sum(not one.pin for one in meanwhile)
        told["became"] = f"{len(meanwhile):,} requests meanwhile, {failed} failed; it came back with its versions"


def main() -> None:
    """Run the example."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    os.environ["CLOUDEDGE_HOME"] = str(OUT.absolute() / "home")
    example = Example()
    began = time.monotonic()

    say("\n[bold]1. Clicks[/]: 13 numbers and 26 categories each, with a signal that a model can find")
    clicks = draw(60_000, seed=1)
    best = auc(example.test.clicked, example.test.truth)
    say(f"   {len(clicks):,} to train on, {len(example.test):,} to test with; AUC of the planted truth {best:.4f}")

    say("\n[bold]2. Train[/] with paddlepaddle")
    for epoch in range(2):
        example.trainer.fit(clicks, seed=epoch)
    say(f"   two passes, AUC {auc(example.test.clicked, example.trainer.score(example.test)):.4f}")

    say("\n[bold]3. Split and pack[/]: a dense program, one table of embeddings, probes, one digest")
    first = example.pack("v1")

    with ExitStack() as stack:  # whatever happens, the processes end
        say("\n[bold]4. Up and release[/]: 2 shards x 2 replicas of the table, 2 serving replicas")
        stack.callback(down, TARGET, config=example.config)
        up(TARGET, config=example.config)
        target = Target.load(TARGET, config=example.config)
        load = Load(lambda: Client(*serving_urls(TARGET, config=example.config)), example.asked)
        load.expect(first.bundle.pin, first.scores[: len(example.asked)])
        watcher = stack.enter_context(Watcher(target, load))
        number = example.release(target, first, load)
        load.start()
        stack.callback(load.stop)
        example.quiet(load, number)
        example.compare(first)

        say("\n[bold]5. Train on and release the next version[/], under load")
        example.trainer.fit(draw(6_000, seed=2), seed=9, rate=1e-3)
        second = example.pack("v2", first)
        load.expect(second.bundle.pin, second.scores[: len(example.asked)])
        example.quiet(load, example.release(target, second, load))
        example.compare(second)

        say("\n[bold]6. Kill[/] a cube replica and a serving replica, under load")
        for process, what in (("sparse-embedding-0of2-0", "a replica of a shard"), ("dense-0", "a serving replica")):
            example.kill(target, load, process, what)
            time.sleep(_QUIET_S / 2)

        say("\n[bold]7. Release a broken version[/]: its probes expect other answers; then roll back")
        third = spoiled(example, second)
        load.expect(third.bundle.pin, third.scores[: len(example.asked)])
        example.quiet(load, example.release(target, third, load))
        with example.happens(load, f"roll back to {first.ref}", f"cloudedge rollback {TARGET}") as told:
            moved = target.rollback(to=1).bytes
        told["became"] = f"{first.ref} answers everywhere again; it was still loaded, {moved} bytes moved"
        example.rollback_s = told["to"] - told["from"]
        say(f"   rolled back to {first.ref} in {example.rollback_s * 1000:.0f} ms")
        example.compare(first)
        time.sleep(_QUIET_S)

    finish(example, load, watcher, time.monotonic() - began)


def spoiled(example: Example, parent: Packed) -> Packed:
    """Pack the same pieces with probes that expect something else, as a broken export would."""
    source = parent.bundle
    requests = tuple(
        request.model_copy(update={"expect": {k: (np.asarray(v) + 0.5).tolist() for k, v in request.expect.items()}})
        for request in source.probes.requests
    )
    bundle = Bundle.pack(
        OUT / "v2" / "pieces" / "dense",
        name="ctr",
        sparse={"embedding": OUT / "v2" / "pieces" / "tables" / "embedding.safetensors"},
        signature=source.signature,
        probes=Probes(requests=requests),
        parent=source,
        hub=example.hub,
    )
    bundle.push(example.config.hubs["office"])
    packed = Packed(bundle, parent.auc, parent.scores)
    example.versions.append(packed)
    return packed


def finish(example: Example, load: Load, watcher: Watcher, seconds: float) -> None:
    """Sum up, write the report, and fail if a promise was broken."""
    answered = load.answered
    failed = [one for one in answered if not one.pin]
    mixed = sum(one.is_mixed for one in answered)
    difference = max(d for _, d in example.served.values())
    report = {
        "failed_requests": len(failed),
        "mixed_answers": mixed,
        "max_abs_difference": difference,
        "requests": len(answered),
        "auc": {
            v.ref: {"trained": v.auc, "served": example.served.get(v.bundle.pin, (None,))[0]} for v in example.versions
        },
        "releases": {str(number): release for number, release in sorted(example.releases.items())},
        "rollback_seconds": example.rollback_s,
        "seconds": seconds,
        "auc_of_the_truth": auc(example.test.clicked, example.test.truth),
        "story": example.story,
        "timeline": timeline(answered),
        "places": watcher.spans(),
        "versions": [
            {
                "bundle": v.ref,
                "pin": v.bundle.pin,
                "auc_trained": v.auc,
                "auc_served": example.served.get(v.bundle.pin, (None, None))[0],
                "max_abs_difference": example.served.get(v.bundle.pin, (None, None))[1],
            }
            for v in example.versions
        ],
    }
    (OUT / "report.json").write_text(json.dumps(report, indent=1))
    (OUT / "report.html").write_text(render(report))
    say("\n[bold]8. Summary[/]")
    say(f"   {len(answered):,} requests, {len(failed)} failed, {mixed} mixed, largest difference {difference:.1e}")
    for number, release in report["releases"].items():
        shipped = f"{release['bytes_shipped'] / 1e6:.2f} of {release['bytes_full'] / 1e6:.1f} MB"
        say(f"   release {number}: {release['bundle']} {release['outcome']} in {release['seconds']:.2f} s, {shipped}")
        if release["note"]:
            say(f"      {release['note']}")
    kept = "kept" if seconds < _PROMISED_S else "not kept"
    say(
        f"   {seconds:.0f} s in all (under {_PROMISED_S:.0f} s is promised: {kept}); the story: {OUT / 'report.html'}\n"
    )
    for one in failed[:3]:
        say(f"   failed at {one.at:.1f} s: {one.why}")
    if failed or mixed or difference > 1e-5:  # noqa: PLR2004 - the promise
        sys.exit(1)


def _until(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {within_s:.0f} s for {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
