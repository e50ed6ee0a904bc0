"""The first five minutes with cloudedge: pack two versions of a model, compare, push, pull, verify and serve them.

Everything happens in a temporary folder. The same steps by hand are in README.md beside this file.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console

from cloudedge import Bundle, LocalHub
from cloudedge.bundle import Lineage, check_signature, diff, new_key_pair, sign_bundle, unpack
from cloudedge.cube import Client, ClientConfig, Server, ServerConfig, build

ROWS, DIM, SHARDS = 200_000, 16, 2
_CONSOLE = Console(highlight=False, soft_wrap=True)
say = _CONSOLE.print


def train(folder: Path, seed: int) -> Path:
    """Stand in for a training run: write dense parameters as Paddle does, and embeddings as numpy does."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    (folder / "model.json").write_text('{"program": "a small click model"}')
    (folder / "model.pdiparams").write_bytes(rng.bytes(2_000_000))
    values = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    touched = np.random.default_rng(seed).choice(ROWS, seed * ROWS // 100, replace=False)
    values[touched] += 0.01
    np.savez(folder.with_suffix(".npz"), keys=np.arange(ROWS, dtype=np.uint64) * 7, values=values)
    return folder


def main() -> None:
    """Run the example."""
    with tempfile.TemporaryDirectory(prefix="cloudedge-") as made:
        root = Path(made)
        laptop, office, edge = (LocalHub(root / name) for name in ("laptop", "office", "edge"))

        say("\n[bold]1. Pack[/] two versions of a trained model; the second stores only the rows that changed")
        first = Bundle.pack(
            train(root / "v1", 0),
            name="ctr",
            sparse={"embedding": root / "v1.npz"},
            lineage=Lineage(dataset="made up", metrics={"auc": 0.781}),
            hub=laptop,
        )
        second = Bundle.pack(
            train(root / "v2", 1), name="ctr", sparse={"embedding": root / "v2.npz"}, parent=first, hub=laptop
        )
        for bundle in (first, second):
            say(f"   {bundle.name}:{bundle.version}  {bundle.digest[:26]}...  {bundle.size_bytes / 1e6:6.1f} MB")

        say("\n[bold]2. Compare[/] them")
        found = diff(first, second)
        table = found.tables["embedding"]
        say(f"   {table.changed:,} of {table.rows_before:,} rows changed, {len(found.changed)} dense files")
        say(f"   an update ships {found.bytes_to_ship / 1e6:.2f} MB instead of {second.size_bytes / 1e6:.1f} MB")

        say("\n[bold]3. Sign and push[/] to a hub (a directory here; s3://, bos:// and oci:// are the same call)")
        private, public = new_key_pair(root, "release", None)
        for bundle in (first, second):
            sign_bundle(bundle, private)
            start = time.perf_counter()
            sent = bundle.push(office, tags=["prod"])
            took = time.perf_counter() - start
            say(f"   ctr:{bundle.version}: sent {sent.bytes_missing / 1e6:.2f} MB in {took * 1000:.0f} ms")
        again = second.push(office)
        say(f"   ctr:2 again: sent {again.bytes_missing} bytes")

        say("\n[bold]4. Pull[/] what prod points at to another place, check every byte and the signature")
        pulled = Bundle.pull("ctr:prod", office, hub=edge)
        pulled.verify(deep=True)
        check_signature(pulled, public)
        rows = pulled.sparse["embedding"]
        say(f"   ctr:{pulled.version} verified; {len(rows):,} rows of {rows.kind}, checksum {rows.checksum}")
        if not (rows.values == np.load(root / "v2.npz")["values"]).all():
            raise SystemExit("the pulled rows are not the trained ones")

        say("\n[bold]5. History[/]: what prod pointed at")
        for entry in office.tags("ctr"):
            if entry.tag == "prod":
                say(f"   {entry.target.digest[:26]}...  {entry.since} to {entry.until or 'now'}  by {entry.by}")
        say("\n[bold]6. Serve[/] both versions from two cube shards; a read names the version it wants")
        serve([first, pulled], root)
        say("\nNext: examples/first_bundle/README.md does the same with the command line.\n")


def serve(bundles: list[Bundle], root: Path) -> None:
    """Build each bundle's table for two shards, load all versions side by side, and read rows of each."""
    with ExitStack() as stack:
        shards = [stack.enter_context(Server(ServerConfig(port=0))) for _ in range(SHARDS)]
        for bundle in bundles:
            folder = unpack(bundle, root / f"unpacked-{bundle.version}")
            table = folder / ".bundle/tables/embedding.safetensors"
            built = build(
                [table], output=root / "cube", table="ctr", shards=SHARDS, version=int(bundle.version), tar=False
            )
            for i, shard in enumerate(shards):
                shard.load(built.directory / f"ctr_part{i}", bundle.version, activate=True)
        client = stack.enter_context(Client(ClientConfig([[shard.address] for shard in shards])))
        for bundle in bundles:
            rows = bundle.sparse["embedding"]
            start = time.perf_counter()
            result = client.seek(rows.keys[:2600], pin=bundle.version)
            took = time.perf_counter() - start
            if not (result.found.all() and (result.values == rows.values[:2600]).all()):
                raise SystemExit("the shards answered with other rows")
            say(f"   2,600 rows pinned to version {result.version} in {took * 1e6:.0f} us, all as packed")
        for shard in shards:
            loaded = shard.versions()
            (now,) = [version for version in loaded if version.active]
            say(f"   {shard.address}: {len(loaded)} versions loaded, {now.name} active, {now.rows:,} rows")


if __name__ == "__main__":
    main()
