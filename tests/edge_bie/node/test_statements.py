"""The checks of a statement that need no node: its form, its size, and the files that it names."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cloudedge.edge_bie.model import STATEMENT_KEY, Statement, statement_config
from cloudedge.edge_bie.model._app_digest import content_of
from cloudedge.edge_bie.model._statement import STATEMENT_LIMIT, Blob
from cloudedge.edge_bie.node._install import checked_statement
from cloudedge.edge_bie.node._node_plan import admit
from cloudedge.edge_bie.node._units import Slot
from cloudedge.errors import IntegrityError
from cloudedge.hub import canonical_json

pytestmark = pytest.mark.rules

MANIFEST = Blob("sha256:" + "1" * 64, 10, "application/x")


def published(**changes):
    """An app and its statement, without services or mounts."""
    bare = SimpleNamespace(labels={"cloudedge-app": "shop"}, services=(), volumes=(), configs=(), workload="deployment")
    stated = Statement("shop", 1, f"ctr@{MANIFEST.digest}", "v1", content=content_of(bare, {}, statement=""))
    statement = replace(stated, **({"manifest": MANIFEST} | changes))
    bare.ref = SimpleNamespace(name=f"shop-{statement.revision}")
    return bare, statement


def received(data):
    app = SimpleNamespace(ref=SimpleNamespace(name="shop-1"), configs=[SimpleNamespace(source="s")])
    return checked_statement(app, {"s": SimpleNamespace(texts={STATEMENT_KEY: data})}, Slot(), None)


def test_a_statement_as_it_was_signed_is_accepted():
    app, statement = published()
    admit(statement, app, {}, Slot())


@pytest.mark.parametrize("size", [-1, 1 << 60, True, 1.5])
def test_blobs_of_absurd_sizes_are_refused(size):
    app, statement = published(blobs=(Blob("sha256:" + "2" * 64, size, "application/x"),))
    with pytest.raises(IntegrityError, match="absurd size"):
        admit(statement, app, {}, Slot())


def test_files_that_the_statement_does_not_name_are_refused():
    """No text of that config changed, and it is mounted where nothing else is."""
    app, statement = published()
    more = SimpleNamespace(texts={}, objects=(SimpleNamespace(key="sha256-" + "3" * 64),))
    with pytest.raises(IntegrityError, match="brings files"):
        admit(statement, app, {"more": more}, Slot())
    own = statement_config(statement.app, statement.revision)
    admit(statement, app, {own: SimpleNamespace(texts={"a": b"b"}, objects=())}, Slot())


def test_a_statement_in_another_form_is_refused():
    """Two texts with one meaning would be two statements with one revision."""
    _, statement = published()
    spaced = json.dumps(json.loads(statement.to_bytes()), indent=1).encode()
    assert Statement.from_bytes(spaced) == statement
    with pytest.raises(IntegrityError, match="canonical"):
        received(spaced)


def test_a_statement_is_bounded():
    with pytest.raises(IntegrityError, match="over the limit"):
        Statement.from_bytes(b"[" + b" " * STATEMENT_LIMIT + b"]")


def test_a_statement_of_another_format_is_refused():
    _, statement = published()
    value = json.loads(statement.to_bytes()) | {"cloudedge-statement": 3}
    with pytest.raises(IntegrityError, match="knows 2"):
        Statement.from_bytes(canonical_json(value))
