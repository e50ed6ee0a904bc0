"""The YOLOv3 example: train a detector, release it to three edge nodes, update it in waves, survive a broken version.

Everything runs on this machine and writes to ``out/yolov3``. The same steps by hand, also with a BIE account, are in
README.md beside this file.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import requests
from asking import Visitors, ask
from detector import SCORE_AT_LEAST
from drawing import side_by_side, with_boxes
from nodes import PROCESSES, EdgeNode, docker_image
from PIL import Image
from report import render
from rich.console import Console
from shapes import MOST, NAMES, SIDE, draw_many
from training import Trainer

from cloudedge import Bundle, LocalHub
from cloudedge.bundle import Lineage, ProbeRequest, Probes, Signature, Variable, export_zip, new_key_pair, sign_bundle
from cloudedge.config import Config
from cloudedge.config import load as load_config
from cloudedge.edge_bie.client import Bie, Node
from cloudedge.edge_bie.fleet import Fleet
from cloudedge.edge_bie.lab import Lab
from cloudedge.supervisor import down

HERE = Path(__file__).parent
OUT = Path("out/yolov3")
TARGET, PORT = "shops", 18082
NODES = ("paddle-serving-test", "shop-2", "shop-3")
_HURRY = 10
"""The lab's clock runs so much faster: a node counts as away after 4 s without a report, not after 40."""
_STEPS, _FINE_STEPS = 700, 150
_QUIET_S = 2.0
_GOOD_ENOUGH = 0.8
_CONSOLE = Console(highlight=False, soft_wrap=True)
SIGNATURE = Signature(
    feed=(
        Variable(name="image", dtype="uint8", shape=(SIDE, SIDE, 3)),
        Variable(name="im_shape", dtype="int32", shape=(2,)),
    ),
    fetch=(Variable(name="fetch_name_0", alias="boxes", shape=(-1, 6)),),
)


def say(text: str = "") -> None:
    """Tell the person at the terminal."""
    _CONSOLE.print(text)


@dataclass
class Version:
    """A version of the model."""

    bundle: Bundle
    precision: float
    zip_bytes: int
    """Of the archive that the console would have had uploaded, and every node downloaded."""

    @property
    def ref(self) -> str:
        """What people call it."""
        return f"{self.bundle.name}:{self.bundle.version}"


class Example:
    """The steps, in order; what they find out ends up in the report."""

    def __init__(self) -> None:
        self.hub = LocalHub()
        self.key, self.public = new_key_pair(OUT, "release", None)
        self.test = draw_many(200, seed=3)
        self.trainer = Trainer()
        self.versions: list[Version] = []
        self.fetched: dict[str, dict[str, int]] = {}
        self.rollouts: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    # 1, 2: a model.

    def pack(self, folder: Path, *, probes: Probes, precision: float) -> Version:
        """Pack what was trained, with what stands around it when it is served, and sign it."""
        shutil.copyfile(HERE / "web_service.py", folder / "web_service.py")
        bundle = Bundle.pack(
            folder,
            name="yolov3",
            signature=SIGNATURE,
            probes=probes,
            lineage=Lineage(dataset="examples/yolov3/shapes.py", metrics={"map50": precision}),
            parent=self.versions[-1].bundle if self.versions else None,
            hub=self.hub,
        )
        sign_bundle(bundle, self.key)
        archive = export_zip(bundle, OUT / f"{bundle.name}-{bundle.version}.zip")
        version = Version(bundle, precision, archive.stat().st_size)
        self.versions.append(version)
        files = ", ".join(f"{name} {layer.size / 1e3:.0f} kB" for name, layer in sorted(bundle.dense_layers.items()))
        say(f"   {version.ref}  {bundle.digest[:19]}...  as a zip {version.zip_bytes / 1e6:.2f} MB; signed")
        say(f"   {files}")
        return version

    def record(self) -> Probes:
        """Write down what the network answers to a picture with shapes of each kind.

        Of all such pictures the one whose weakest answer is the strongest: an answer just above the threshold may be
        there on one machine and not on another.
        """
        every_kind = [picture for picture in self.test if len(set(picture.labels)) == len(NAMES)]
        found = self.trainer.find(every_kind)
        weakest = [rows[:, 1].min() if len(rows) >= len(NAMES) else 0.0 for rows in found]
        if max(weakest) < 2 * SCORE_AT_LEAST:
            raise SystemExit("the detector is sure of nothing: it was not trained enough")
        pixels = every_kind[int(np.argmax(weakest))].pixels[None]
        shape = np.array([[SIDE, SIDE]], np.int32)
        request = ProbeRequest(
            name="shapes",
            feed={"image": pixels.tolist(), "im_shape": shape.tolist()},
            expect={"boxes": self.trainer.answer(pixels, shape).round(4).tolist()},
            tolerance=0.05,
        )
        return Probes(requests=(request,))

    # 3 to 7: nodes.

    def release(self, fleet: Fleet, version: Version, visitors: Visitors | None = None) -> str:
        """Roll a version out, and note what it cost each node."""
        before = fetched_bytes(fleet.nodes())
        self.mark(visitors, f"release {version.ref}")
        plan = fleet.plan(version.bundle)
        say("   " + plan.summary().replace("\n", "\n   "))
        start = time.monotonic()
        outcome = fleet.rollout(plan, version.bundle)
        seconds = time.monotonic() - start
        self.mark(visitors, f"{version.ref} {'done' if outcome.state == 'done' else 'taken back'}")
        self.count(version, fleet, before)
        self.rollouts.append(
            {
                "number": outcome.number,
                "bundle": version.ref,
                "state": outcome.state,
                "why": textwrap.shorten(outcome.why, 300),
                "waves": [list(wave.nodes) for wave in plan.waves],
                "counts": dict(outcome.counts),
                "offline": list(outcome.offline),
                "seconds": seconds,
            }
        )
        say(f"   rollout {outcome.number} of {version.ref}: {outcome.state} in {seconds:.1f} s; {outcome.summary}")
        if outcome.why:
            say(f"   because: {textwrap.shorten(outcome.why, 300)}")
        return str(outcome.state)

    def count(self, version: Version, fleet: Fleet, before: dict[str, int]) -> None:
        """Note what nodes have fetched since."""
        of_version = self.fetched.setdefault(version.ref, {})
        for name, total in fetched_bytes(fleet.nodes()).items():
            if total > before.get(name, 0):
                of_version[name] = of_version.get(name, 0) + total - before.get(name, 0)

    def mark(self, visitors: Visitors | None, what: str) -> None:
        """Remember when something happened."""
        if visitors is not None:
            self.events.append({"t": round(visitors.now(), 3), "what": what})


def main() -> None:  # noqa: PLR0915 - a story is told from beginning to end
    """Run the example."""
    for left in OUT.glob(f"nodes/*/{PROCESSES}"):
        down(left)  # by a run that was killed
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    os.environ["CLOUDEDGE_HOME"] = str(OUT.absolute() / "home")
    example = Example()
    began = time.monotonic()

    say(f"\n[bold]1. Train[/] a small YOLOv3 on made-up pictures with 1 to {MOST} shapes: {', '.join(NAMES)}")
    example.trainer.fit(draw_many(3000, seed=1), steps=_STEPS, rate=4e-3, seed=1, progress=_told_every(_STEPS // 6))
    precision = example.trainer.precision(example.test)
    trained_s = time.monotonic() - began
    say(f"   {_STEPS} steps in {trained_s:.0f} s; mAP@0.5 on {len(example.test)} held-out pictures: {precision:.3f}")

    say("\n[bold]2. Pack and sign[/]: what the outputs learn is a file of its own")
    first = example.pack(example.trainer.save(OUT / "v1"), probes=example.record(), precision=precision)

    with ExitStack() as stack:  # whatever happens, the processes end
        say("\n[bold]3. A control plane like BIE's, and three nodes[/]")
        lab = stack.enter_context(Lab(OUT / "lab"))
        requests.put(f"{lab.admin_url}/_lab/settings", json={"rate": _HURRY}, timeout=10).raise_for_status()
        image, missing = docker_image()
        if missing:
            say(f"   {missing}")
        config = _config(lab, image)
        fleet = stack.enter_context(Fleet.load(TARGET, config=config, tell=_tell))
        nodes = _nodes(image)
        for node in nodes.values():
            fleet.bie.put_node(Node(node.name, labels={"site": node.name}))
            stack.callback(node.stop)
            node.start(lab.sync_url, example.public)
            say(f"   {node.name}: {node.runtime}, will answer on {node.url}")
        _until(lambda: all(n.ready == "online" for n in fleet.nodes()), "the nodes to report")

        say(
            "\n[bold]4. Release v1[/]: one signed statement, one app, blobs by digest; a node moves when its label does"
        )
        if example.release(fleet, first) != "done":
            raise SystemExit("version 1 was not released")
        # In this lab's hurry a node that is busy with its first container may count as away; it comes all the same.
        _until(lambda: fleet.status().is_whole, "every node to answer")
        _names(fleet.bie)

        say("\n[bold]5. Ask[/] as Paddle Serving's clients do: POST /yolov3/prediction with a base64 picture")
        _show(example, nodes["paddle-serving-test"])

        pictures = [picture.png() for picture in example.test[:20]]
        visitors = stack.enter_context(Visitors({n.name: n.url for n in nodes.values()}, pictures))

        say("\n[bold]6. Fine-tune the outputs, release v2 in two waves[/], with one node cut off, under load")
        example.trainer.fit(draw_many(1500, seed=2), steps=_FINE_STEPS, rate=1.5e-3, seed=2, outputs_only=True)
        precision = example.trainer.precision(example.test)
        say(f"   {_FINE_STEPS} steps; mAP@0.5 {precision:.3f}")
        second = example.pack(example.trainer.save(OUT / "v2"), probes=example.record(), precision=precision)
        away = nodes["shop-3"]
        away.cut_off()
        example.mark(visitors, f"{away.name} is cut off")
        _until(lambda: _ready(fleet, away.name) == "offline", f"{away.name} to be missed")
        say(f"   {away.name} is cut off; it goes on answering with what it has")
        example.release(fleet, second, visitors)
        time.sleep(_QUIET_S)

        say("\n[bold]7. Release v3, which is broken[/]: its outputs were exported before they were trained")
        third = example.pack(_broken(OUT / "v3"), probes=second.bundle.probes, precision=float("nan"))
        if example.release(fleet, third, visitors) == "done":
            raise SystemExit("a broken version was released")
        time.sleep(_QUIET_S)

        say(f"\n[bold]8. {away.name} returns[/] and goes straight to what it should have")
        before = fetched_bytes(fleet.nodes())
        start = time.monotonic()
        example.mark(visitors, f"{away.name} returns")
        away.start(lab.sync_url, example.public)
        _until(lambda: ask(away.url, pictures[0]).pin == second.bundle.pin, f"{away.name} to answer with {second.ref}")
        _until(lambda: fleet.status().is_whole, "the whole fleet to run what is live")
        example.count(second, fleet, before)
        say(f"   it answers with {second.ref} after {time.monotonic() - start:.1f} s")
        for status in fleet.status().nodes:
            say(f"   {status.name}: {status.title}, {status.health}")
        time.sleep(_QUIET_S)
        visitors.__exit__(None, None, None)

    finish(example, visitors, trained_s, time.monotonic() - began)


def _config(lab: Lab, image: str) -> Config:
    """Read cloudedge.yaml, with the addresses that this lab has."""
    config = load_config(HERE / "cloudedge.yaml")
    cloud, target = config.clouds["lab"], config.targets[TARGET]
    assert cloud.objects is not None and target.edge is not None  # noqa: S101, PT018 - it is our own file
    objects = cloud.objects.model_copy(update={"public_url": lab.objects_url})
    edge = target.edge.model_copy(update={"image": image, "run": str(HERE / "run.sh")})  # wherever it is started
    return config.model_copy(
        update={
            "clouds": {"lab": cloud.model_copy(update={"url": lab.admin_url, "objects": objects})},
            "targets": {TARGET: target.model_copy(update={"edge": edge})},
        }
    )


def _nodes(image: str) -> dict[str, EdgeNode]:
    """Describe three nodes; the last one runs containers if there is an image to run."""
    made = {}
    for number, name in enumerate(NODES):
        runtime = "docker" if image and number == len(NODES) - 1 else "process"
        port = _free(PORT + number)
        made[name] = EdgeNode(name, OUT / "nodes" / name, port=port, wanted=PORT, runtime=runtime)
    return made


def _free(port: int) -> int:
    """Return a port if nobody has it, else any that is free."""
    for wanted in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SystemExit("no port is free")


def _names(bie: Bie) -> None:
    """Say what the release became in BIE."""
    for config in sorted(bie.configs(selector="cloudedge=owned"), key=lambda one: one.name):
        say(f"   [dim]config {config.name}[/]")
    for app in bie.apps(selector="cloudedge=owned"):
        say(f"   [dim]app    {app.name}[/]")


def _show(example: Example, node: EdgeNode) -> None:
    """Ask about a few pictures and draw what was found."""
    drawn = []
    chosen = [picture for picture in example.test if len(picture.labels) >= MOST - 1][:4]
    for picture in chosen:
        answer = ask(node.url, picture.png())
        drawn.append(with_boxes(Image.fromarray(picture.pixels), answer.boxes))
        found = ", ".join(f"{NAMES[box['category_id']]} {box['score']:.2f}" for box in answer.boxes)
        truth = ", ".join(NAMES[label] for label in picture.labels)
        say(f"   found {found or 'nothing'} (drawn: {truth})")
    (OUT / "picture.png").write_bytes(chosen[0].png())
    side_by_side(drawn).save(OUT / "detections.png")
    say(f"   {OUT / 'detections.png'}")


def _broken(folder: Path) -> Path:
    """Make version 2 with outputs that nobody trained, as an export of the wrong checkpoint would."""
    shutil.copytree(OUT / "v2", folder)
    untrained = Trainer(seed=99).save(OUT / "untrained")
    shutil.copyfile(untrained / "model.outputs.pdiparams", folder / "model.outputs.pdiparams")
    return folder


def fetched_bytes(nodes: list[Node]) -> dict[str, int]:
    """Return what each node says it has downloaded so far."""
    found = {}
    for node in nodes:
        for host in node.report.stats.values() if node.report else ():
            found[node.name] = int(host.get("extension", {}).get("cloudedge", {}).get("fetched", 0))
    return found


def finish(example: Example, visitors: Visitors, trained_s: float, seconds: float) -> None:
    """Sum up, write the report, and fail if a promise was broken."""
    failed = {name: why for name, why in visitors.failed.items() if why}
    picture = base64.b64encode((OUT / "detections.png").read_bytes()).decode()
    report = {
        "seconds": seconds,
        "trained_seconds": trained_s,
        "answered": sum(visitors.answered.values()),
        "failed": sum(map(len, failed.values())),
        "versions": [
            {
                "bundle": v.ref,
                "pin": v.bundle.pin,
                "map50": None if np.isnan(v.precision) else v.precision,
                "zip_bytes": v.zip_bytes,
            }
            for v in example.versions
        ],
        "fetched_bytes": example.fetched,
        "rollouts": example.rollouts,
        "events": example.events,
        "nodes": visitors.spans,
    }
    (OUT / "report.json").write_text(json.dumps(report, indent=1))
    (OUT / "report.html").write_text(render(report, picture))
    say("\n[bold]9. What travelled[/], against the zip that every node would download")
    for version in example.versions:
        for name, count in sorted(example.fetched.get(version.ref, {}).items()):
            share = count / version.zip_bytes
            say(
                f"   {version.ref} to {name:20} {count / 1e3:8.0f} kB of {version.zip_bytes / 1e3:.0f} kB ({share:.0%})"
            )
    say("\n[bold]10. Summary[/]")
    say(f"   {report['answered']:,} requests while versions changed, {report['failed']} failed")
    for rollout in example.rollouts:
        say(f"   rollout {rollout['number']}: {rollout['bundle']} {rollout['state']} in {rollout['seconds']:.1f} s")
    say(f"   {seconds:.0f} s in all; the whole story: {OUT / 'report.html'}\n")
    for name, why in failed.items():
        say(f"   {name} failed {why[0]}")
    weak = [v.ref for v in example.versions[:2] if v.precision < _GOOD_ENOUGH]
    if failed or weak:
        sys.exit(f"not as promised: {len(failed)} nodes failed requests, too weak: {weak}")


def _tell(text: str) -> None:
    """Pass on what a rollout says."""
    _CONSOLE.print(f"   {textwrap.shorten(text, 200)}", style="dim", markup=False)


def _told_every(steps: int) -> Callable[[int, float], None]:
    losses: list[float] = []

    def tell(step: int, loss: float) -> None:
        losses.append(loss)
        if (step + 1) % steps == 0:
            say(f"   step {step + 1}: loss {np.mean(losses[-steps:]):.1f}")

    return tell


def _ready(fleet: Fleet, name: str) -> str:
    return next(node.ready for node in fleet.nodes() if node.name == name)


def _until(condition: Callable[[], bool], what: str, within_s: float = 120.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {within_s:.0f} s for {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
