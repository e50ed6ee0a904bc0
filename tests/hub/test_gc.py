"""What a collection keeps, and why."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudedge.bundle import Bundle, unpack
from cloudedge.errors import Conflict, InputError, NotFound
from cloudedge.hub import (
    ANY,
    Descriptor,
    LocalHub,
    Manifest,
    Stored,
    collect,
    copy,
    plan_gc,
    release_tag,
    signature_tag,
)
from cloudedge.hub.core._tags import moved
from tests.models import make_model, make_table

pytestmark = pytest.mark.rules

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
KEEP = timedelta(days=30)


def day(n):
    return (NOW - timedelta(days=n)).strftime("%Y-%m-%dT%H:%M:%SZ")


def make(note, blobs=()):
    return Manifest.build(artifact_type="", config=Descriptor.of(note, "c"), layers=list(blobs), annotations={})


def stored(*descriptors):
    return [Stored(d.digest, d.size) for d in descriptors]


def run(moves, manifests, extra=()):
    tags = {"ctr": []}
    for tag, target, ago in moves:
        tags["ctr"] = moved(tags["ctr"], tag, target.descriptor if target else None, by="me", at=day(ago), expected=ANY)
    everything = stored(*(m.descriptor for m in manifests), *(b for m in manifests for b in m.blobs), *extra)
    plan = plan_gc(tags, {m.digest: m for m in manifests}, everything, now=NOW, retention=KEEP)
    return {k.digest: k.reasons for k in plan.kept}, {d.digest for d in plan.delete}, plan


A, B, C = (
    make(b"a", [Descriptor.of(b"shared", "l"), Descriptor.of(b"only a", "l")]),
    make(b"b", [Descriptor.of(b"shared", "l")]),
    make(b"c"),
)


def test_reasons_are_named():
    kept, deleted, _ = run(
        [("1", A, 90), ("prod", A, 90), ("prod", B, 10), (release_tag("eu", "live"), B, 1)], [A, B, C]
    )
    assert kept[A.digest] == ("version 1", f"was prod until {day(10)}")
    assert kept[B.digest] == ("tag prod", "live on eu")
    assert deleted == {C.digest, C.config.digest}


def test_history_beyond_retention_lets_go_but_shared_blobs_stay():
    kept, deleted, plan = run([("prod", A, 90), ("prod", B, 40)], [A, B])
    assert set(kept) == {B.digest}
    assert deleted == {A.digest, A.config.digest, Descriptor.of(b"only a", "l").digest}
    assert [(name, entry.target.digest) for name, entry in plan.forget] == [("ctr", A.digest)]


def test_a_signature_lives_as_long_as_what_it_signs():
    sig_a, sig_b = make(b"sig a"), make(b"sig b")
    moves = [
        ("prod", A, 90),
        (signature_tag(A.digest), sig_a, 90),
        ("prod", B, 40),
        (signature_tag(B.digest), sig_b, 40),
    ]
    kept, deleted, _ = run(moves, [A, B, sig_a, sig_b])
    assert kept[sig_b.digest] == (f"signature of {B.digest}",)
    assert sig_a.digest in deleted


def test_an_index_keeps_its_children():
    value = {"schemaVersion": 2, "manifests": [A.descriptor.to_json()]}
    index = Manifest.parse(json.dumps(value).encode())
    _, deleted, _ = run([("multi", index, 1)], [index, A, B])
    assert deleted == {B.digest, B.config.digest}


MOVES = st.lists(
    st.tuples(st.sampled_from(["1", "2", "prod", "test"]), st.sampled_from([A, B, C, None]), st.integers(0, 100)),
    max_size=12,
)


@settings(max_examples=300)
@given(MOVES)
def test_nothing_that_is_pointed_at_ever_goes(moves):
    done, tags = [], []
    for tag, target, ago in sorted(moves, key=lambda m: -m[2]):
        try:
            tags = moved(tags, tag, target.descriptor if target else None, by="me", at=day(ago), expected=ANY)
        except (Conflict, NotFound):
            continue
        done.append((tag, target, ago))
    _, deleted, plan = run(done, [A, B, C])
    for entry in tags:
        recent = entry.is_current or entry.until > day(30)
        if recent:
            manifest = next(m for m in (A, B, C) if m.digest == entry.target.digest)
            assert not deleted & {manifest.digest, *(b.digest for b in manifest.blobs)}
    assert all(not entry.is_current for _, entry in plan.forget)


@pytest.fixture
def two(hub, tmp_path):
    model = make_model(tmp_path / "model")
    one = Bundle.pack(model, name="ctr", sparse={"dict": make_table(seed=1)}, hub=hub)
    (model / "model.pdmodel").write_bytes(b"another")
    return one, Bundle.pack(model, name="ctr", sparse={"dict": make_table(seed=2)}, hub=hub)


def gc(hub, days=0, **options):
    return collect(hub, now=datetime.now(timezone.utc), retention=timedelta(days=days), **options)


def test_collect_frees_what_was_untagged_and_spares_the_rest(hub, two, tmp_path):
    one, second = two
    assert gc(hub, dry_run=False).delete == ()
    hub.move_tag("ctr", "1", None, by="me", at=day(1))
    assert gc(hub, days=400, dry_run=False).delete == ()
    plan = gc(hub, dry_run=True)
    only_one = {b.digest for b in one.manifest.blobs} - {b.digest for b in second.manifest.blobs}
    assert {d.digest for d in plan.delete} == only_one | {one.digest}
    assert Bundle.open(f"ctr@{one.digest}", hub=hub)
    assert gc(hub, dry_run=False) == plan
    assert gc(hub, dry_run=False).delete == ()
    second.verify(deep=True)
    unpack(second, tmp_path / "still-there")
    with pytest.raises(NotFound):
        Bundle.open(f"ctr@{one.digest}", hub=hub)


def test_never_during_a_push(hub, far, two):
    copy(hub, far, "ctr", two[0].digest, tags=["1"], by="me", at="t")
    with far.writing():
        with pytest.raises(Conflict, match="the lock blobs is held by"):
            gc(far, dry_run=False)
        assert gc(far, dry_run=True)
    gc(far, dry_run=False)


def test_a_manifest_that_cannot_be_read_stops_a_collection_until_it_is_untagged(tmp_path):
    hub = LocalHub(tmp_path)
    raw = b'{"schemaVersion":2,"layers":[{"mediaType":"x","size":1,"digest":"sha256:' + b"a" * 64
    raw += b'","annotations":{"org.cncf.model.filepath":"../../x"}}]}'
    blob = hub.write_bytes(raw, "application/vnd.oci.image.manifest.v1+json")
    hub.move_tag("ctr", "evil", blob, by="mallory", at="2026-01-01T00:00:00Z")
    with pytest.raises(InputError, match=r"ctr@sha256:.* is no manifest that can be read"):
        collect(hub, now=NOW, retention=KEEP, dry_run=False)
    hub.move_tag("ctr", "evil", None, by="me", at="2026-01-01T00:00:00Z")
    collect(hub, now=NOW, retention=KEEP, dry_run=False)
