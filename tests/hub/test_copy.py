"""Push, pull and copy between hubs: only what is missing, published last, and kept when interrupted."""

import pytest

from cloudedge.bundle import Bundle
from cloudedge.errors import Conflict, IntegrityError, Interrupted, Unavailable
from cloudedge.hub import LocalHub, Manifest, copy, current, plan_copy, signature_tag
from tests.models import change_table, make_model, make_table

pytestmark = pytest.mark.rules


@pytest.fixture
def bundle(hub, tmp_path):
    return Bundle.pack(make_model(tmp_path / "model"), name="ctr", sparse={"dict": make_table(5000)}, hub=hub)


def push(source, target, bundle, tags=("1",), **options):
    return copy(source, target, "ctr", bundle.digest, tags=tags, by="me", at="t", **options)


def test_a_second_push_moves_nothing(hub, far, bundle):
    settled = []
    first = push(hub, far, bundle, progress=settled.append)
    assert first.bytes_missing == first.bytes_total == sum(settled)
    Bundle.open("ctr:1", hub=far).verify(deep=True)
    settled.clear()
    second = push(hub, far, bundle, progress=settled.append)
    assert (second.bytes_missing, second.missing, settled) == (0, (), [])


def test_a_new_version_ships_its_delta(hub, far, bundle, tmp_path):
    push(hub, far, bundle)
    two = Bundle.pack(
        tmp_path / "model", name="ctr", sparse={"dict": change_table(make_table(5000), seed=1)}, parent=bundle, hub=hub
    )
    plan = plan_copy(hub, far, "ctr", two.digest)
    delta = two.table_layers["dict"][-1]
    assert delta in plan.missing
    assert plan.bytes_missing < delta.size + 5000
    push(hub, far, two, tags=["2"])
    assert Bundle.open("ctr:2", hub=far).sparse["dict"].checksum == two.sparse["dict"].checksum


class Failing(LocalHub):
    """A hub that stops answering after some bytes."""

    def __init__(self, root, after, error):
        super().__init__(root)
        self.after, self.error = after, error

    def read_blob(self, name, blob, start=0):
        for chunk in super().read_blob(name, blob, start):
            for at in range(0, len(chunk), 1000):
                self.after -= 1000
                if self.after < 0:
                    raise self.error
                yield chunk[at : at + 1000]


def test_an_interrupted_copy_says_so_and_continues(hub, far, bundle):
    flaky = Failing(hub.url, 30_000, Unavailable("the network is down"))
    with pytest.raises(Interrupted, match="the network is down") as caught:
        push(flaky, far, bundle)
    assert caught.value.exit_code == 3
    assert "again" in caught.value.hint
    assert far.names() == []
    flaky.after = 10**9
    push(flaky, far, bundle)
    assert flaky.after > 10**9 - bundle.size_bytes
    Bundle.open("ctr:1", hub=far).verify()


def test_an_error_that_retrying_cannot_mend_is_not_called_resumable(hub, far, bundle):
    broken = Failing(hub.url, 0, IntegrityError("broken"))
    with pytest.raises(IntegrityError):
        push(broken, far, bundle)
    assert far.names() == []


def test_a_version_that_differs_in_the_target_is_not_overwritten(hub, far, bundle, tmp_path):
    other = Bundle.pack(make_model(tmp_path / "other", seed=9), name="ctr", version=1, hub=far)
    with pytest.raises(Conflict, match="versions never change"):
        push(hub, far, bundle)
    assert current(far.tags("ctr"), "1").target.digest == other.digest


def test_signatures_travel_along(hub, far, bundle):
    tag = signature_tag(bundle.digest)
    signature = hub.write_bytes(b"sig", "application/vnd.dev.cosign.simplesigning.v1+json")
    manifest = Manifest.build(artifact_type="", config=signature, layers=[signature], annotations={})
    hub.write_manifest("ctr", manifest)
    hub.move_tag("ctr", tag, manifest.descriptor, by="me", at="t")
    push(hub, far, bundle)
    assert current(far.tags("ctr"), tag).target.digest == manifest.digest
    assert far.has_blob("ctr", signature)


def test_pull_into_an_empty_hub(hub, tmp_path, bundle):
    pulled = Bundle.pull("ctr:1", hub, hub=LocalHub(tmp_path / "elsewhere"))
    assert pulled.digest == bundle.digest
    assert (pulled.sparse["dict"].values == bundle.sparse["dict"].values).all()
