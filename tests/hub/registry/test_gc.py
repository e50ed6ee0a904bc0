"""What could be garbage in a real registry, and what is discarded of it."""

from __future__ import annotations

import pytest

from cloudedge.errors import (
    Conflict,
    NotFound,
)
from cloudedge.hub.core._oci import IMAGE_INDEX, Manifest, canonical_json
from cloudedge.hub.registry._registry_hub import RegistryHub
from tests.hub.registry.servers import foreign_push, move, pointer

pytestmark = pytest.mark.parts


def test_what_could_be_garbage_and_what_is_discarded(url, three):
    hub = RegistryHub(url)
    a, b, c = three
    move(hub, "live", a, 1)
    move(hub, "live", b, 2)
    move(hub, "5", c, 2)
    move(hub, "beta", a, 3)
    with hub.writing(), hub.collecting():
        assert list(hub.stored()) == []
    move(hub, "beta", c, 4)
    (found,) = hub.stored()
    assert (found.digest, found.size) == (a.digest, len(a.raw))
    with pytest.raises(NotFound, match="is not garbage"):
        hub.discard(b.digest)
    hub.discard(a.digest)
    assert list(hub.stored()) == []
    with pytest.raises(NotFound):
        hub.read_manifest("ctr", a.digest)
    assert pointer(hub, "live") == b.digest
    assert [e.target.digest for e in hub.tags("ctr") if e.tag == "live"] == [
        a.digest,
        b.digest,
    ]  # history stays


def test_what_is_tagged_again_is_not_discarded(hub, three):
    a, b, _ = three
    move(hub, "live", a, 1)
    move(hub, "live", b, 2)
    assert [s.digest for s in hub.stored()] == [a.digest]
    foreign_push(hub, "kept", a)
    with pytest.raises(Conflict, match="points at it again"):
        hub.discard(a.digest)
    assert hub.read_manifest("ctr", a.digest) == a


def test_what_an_index_names_is_not_garbage(hub, three):
    a, b, _ = three
    move(hub, "live", a, 1)
    index = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [a.descriptor.to_json()]}
    foreign_push(hub, "both", Manifest.parse(canonical_json(index)))
    move(hub, "live", b, 2)
    assert list(hub.stored()) == []
