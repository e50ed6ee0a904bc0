"""Other people's tools read what we pushed, and we read what they pushed."""

from __future__ import annotations

import json
import subprocess

import pytest

from cloudedge.hub.core._oci import Manifest, canonical_json, verified
from cloudedge.hub.core._tags import current
from tests.hub.registry.servers import push, tool

pytestmark = pytest.mark.parts

LAYER = b"weights " * 1_000_000  # large enough to go in chunks


@pytest.fixture
def pushed(hub):
    manifest = push(hub, "ctr", LAYER, b"small")
    hub.move_tag("ctr", "live", manifest.descriptor, by="u", at="2026-01-01T00:00:00Z")
    return manifest


@pytest.fixture
def reference(hub):
    return f"{hub.url.removeprefix('oci://')}/ctr"


def run(*command, **more) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **more)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def files_of(layout):
    return {f"sha256:{path.name}": path.read_bytes() for path in (layout / "blobs" / "sha256").iterdir()}


def test_skopeo_inspects_and_copies(hub, pushed, reference, tmp_path):
    skopeo = tool("skopeo")
    raw = run(skopeo, "inspect", "--tls-verify=false", "--raw", f"docker://{reference}:live")
    assert raw.encode() == pushed.raw
    layout = tmp_path / "layout"
    run(skopeo, "copy", "--src-tls-verify=false", f"docker://{reference}:live", f"oci:{layout}:live")
    files = files_of(layout)
    assert files[pushed.digest] == pushed.raw
    assert files[pushed.layers[0].digest] == LAYER
    # And back, under another name, by another tool: the same bytes, and a tag without a history.
    run(skopeo, "copy", "--dest-tls-verify=false", f"oci:{layout}:live", f"docker://{reference}-copy:live")
    (entry,) = hub.tags("ctr-copy")
    assert (entry.tag, entry.target, entry.since, entry.by) == ("live", pushed.descriptor, "", "")
    assert b"".join(verified(hub.read_blob("ctr-copy", pushed.layers[0]), pushed.layers[0], "here")) == LAYER


def test_skopeo_lists_our_tags(pushed, reference):
    listed = json.loads(run(tool("skopeo"), "list-tags", "--tls-verify=false", f"docker://{reference}"))["Tags"]
    assert "live" in listed
    assert sum(tag.startswith("cloudedge-event.live.00000001.") for tag in listed) == len(listed) - 1 == 1


def test_skopeo_reads_the_layout_our_bytes_make(pushed, hub, tmp_path):
    """A manifest and its blobs are a layout wherever they are put."""
    layout = tmp_path / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    entry = {**pushed.descriptor.to_json(), "annotations": {"org.opencontainers.image.ref.name": "live"}}
    (layout / "index.json").write_bytes(canonical_json({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "blobs" / "sha256" / pushed.digest[7:]).write_bytes(pushed.raw)
    for blob in pushed.blobs:
        (layout / "blobs" / "sha256" / blob.digest[7:]).write_bytes(b"".join(hub.read_blob("ctr", blob)))
    raw = run(tool("skopeo"), "inspect", "--raw", f"oci:{layout}:live")
    assert raw.encode() == pushed.raw
    oras = tool("oras")
    assert run(oras, "manifest", "fetch", "--oci-layout", f"{layout}:live").encode() == pushed.raw


def test_oras_fetches_and_pulls(pushed, reference, tmp_path):
    oras = tool("oras")
    assert run(oras, "manifest", "fetch", "--plain-http", f"{reference}:live").encode() == pushed.raw
    run(
        oras,
        "blob",
        "fetch",
        "--plain-http",
        "--output",
        tmp_path / "layer",
        f"{reference}@{pushed.layers[0].digest}",
    )
    assert (tmp_path / "layer").read_bytes() == LAYER
    run(
        oras,
        "copy",
        "--from-plain-http",
        "--to-oci-layout",
        f"{reference}:live",
        f"{tmp_path / 'layout'}:live",
    )
    assert files_of(tmp_path / "layout")[pushed.digest] == pushed.raw
    tags = run(oras, "repo", "tags", "--plain-http", reference).split()
    assert "live" in tags


def test_what_oras_pushed_and_tagged(hub, pushed, reference, tmp_path):
    oras = tool("oras")
    (tmp_path / "model.bin").write_bytes(LAYER)
    run(
        oras,
        "push",
        "--plain-http",
        "--artifact-type",
        "application/x",
        f"{reference}:theirs",
        "model.bin:a/b",
        cwd=tmp_path,
    )
    theirs = current(hub.tags("ctr"), "theirs")
    manifest = hub.read_manifest("ctr", theirs.target.digest)
    assert b"".join(verified(hub.read_blob("ctr", manifest.layers[0]), manifest.layers[0], "here")) == LAYER
    run(oras, "tag", "--plain-http", f"{reference}:theirs", "live")
    entries = [e for e in hub.tags("ctr") if e.tag == "live"]
    assert [e.target.digest for e in entries] == [pushed.digest, theirs.target.digest]
    assert (entries[-1].since, entries[-1].by) == ("", "")


def test_oras_reads_the_record(pushed, reference, hub):
    oras = tool("oras")
    (event,) = [t for t in hub._repository("ctr").list_tags() if t.startswith("cloudedge-event.")]
    index = Manifest.parse(run(oras, "manifest", "fetch", "--plain-http", f"{reference}:{event}").encode())
    assert [d.digest for d in index.manifests] == [pushed.digest]
