"""BIE's silent losses, made to happen in the lab: noticed by reading back, and repaired."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import requests

from cloudedge.clock import ManualClock
from cloudedge.edge_bie.client import App, Bie, Config, Node, Secret, Service, Text, Volume
from cloudedge.edge_bie.lab import Faults, Lab
from cloudedge.errors import CloudEdgeError, Conflict, Interrupted, Unavailable
from tests.edge_bie.client.suite import OWNED, model_config, script_config, seed_app

pytestmark = pytest.mark.parts


def named(base):
    return base


@pytest.fixture
def lines():
    return []


@pytest.fixture
def frozen(tmp_path, lines):
    """A lab whose clock stands still: every write is within one second of every other."""
    lab = Lab(tmp_path / "lab", clock=ManualClock(), seed=7)
    with lab, Bie.from_url(lab.admin_url, clock=ManualClock(), audit=lines.append) as bie:
        yield bie


def test_writes_within_one_second_leave_no_app_behind(frozen, lines):
    frozen.put_config(model_config(named))
    frozen.put_config(script_config(named))
    frozen.put_app(seed_app(named))
    for number in range(12):
        written = frozen.put_config(script_config(named, f"echo {number}\n"))
        assert frozen.app("paddle-serving").configs["run-script"] == written.version
    repairs = [line for line in lines if line.verb == "repin"]
    assert repairs, "of twelve writes within one second none came out of order: the trap was not there"
    assert {line.object for line in repairs} == {"app/paddle-serving"}


def test_from_999_to_1000(tmp_path, lines):
    with Lab(tmp_path / "lab") as lab, Bie.from_url(lab.admin_url, clock=ManualClock(), audit=lines.append) as bie:
        requests.put(f"{lab.admin_url}/_lab/settings", json={"nextVersion": 996}, timeout=5).raise_for_status()
        bie.put_config(Config("greeting", {"a": Text("0")}))
        service = Service("main", image="i")
        bie.put_app(App("hello", services=(service,), volumes=(Volume("vol", config="greeting"),)))
        for number in range(1, 6):
            written = bie.put_config(Config("greeting", {"a": Text(str(number))}))
            assert bie.app("hello").configs["greeting"] == written.version
        assert int(written.version) > 999
    assert [line.object for line in lines if line.verb == "repin"] == ["app/hello"]


def test_secrets_reach_their_apps_too(frozen):
    secret = Secret("keys", {"a": "0"})
    frozen.put_secret(secret)
    frozen.put_app(App("hello", services=(Service("main", image="i"),), volumes=(Volume("vol", secret="keys"),)))
    for number in range(1, 6):
        written = frozen.put_secret(replace(secret, data={"a": str(number)}))
        assert frozen.app("hello").volumes[0].version == written.version


def test_two_writes_to_one_config_are_a_second_apart(frozen):
    before = frozen._clock.elapsed
    for number in range(3):
        frozen.put_config(Config("greeting", {"a": Text(str(number))}))
    assert frozen._clock.elapsed - before >= 2


def test_an_app_that_somebody_left_behind_is_written_again(frozen):
    frozen.put_config(model_config(named))
    frozen.put_config(script_config(named))
    first = frozen.put_app(seed_app(named))
    frozen.repin(first.name)
    assert frozen.app(first.name).configs == first.configs


def test_a_node_that_was_not_told_is_told(frozen):
    """Two writes that meet lose one: here the node's own matching is undone behind the client's back."""
    node = frozen.put_node(Node("n1", labels={"serves": "x"}))
    app = frozen.put_app(App("hello", selector="serves=x", services=(Service("main", image="i"),)))
    assert frozen.set_labels(node.name, {}, apps={"hello": app.version}).desire_apps["hello"] == app.version
    with pytest.raises(Conflict, match="lost each time"):
        frozen.set_labels(node.name, {}, apps=("another",))


@pytest.mark.parametrize("seed", range(4))
def test_a_bad_day_loses_nothing(tmp_path, seed, lines):
    """Errors, broken connections, lost answers, lost and doubled writes, all at once."""
    faults = Faults(seed=seed, delay=0, error=0.05, drop=0.05, lost_answer=0.08, lost_write=0.06, duplicate=0.05, cut=0)
    with Lab(tmp_path / "lab", faults=faults, seed=seed) as lab:
        with Bie.from_url(lab.admin_url, clock=ManualClock(seed=seed), audit=lines.append) as bie:
            a_day_of_work(bie)
        requests.delete(f"{lab.admin_url}/_lab/faults", timeout=5).raise_for_status()
        with Bie.from_url(lab.admin_url) as bie:
            found = {node.name: node for node in bie.nodes()}
            assert {n: node.labels["serves"] for n, node in found.items()} == {f"node{i}": "x" for i in range(4)}
            assert {n: node.labels["ring"] for n, node in found.items()} == {f"node{i}": str(i) for i in range(4)}
            assert [each.name for each in bie.apps()] == ["paddle-serving"]
            script = bie.config("run-script")
            assert (script.items, script.labels) == ({"run.sh": Text("echo 3\n")}, OWNED)
            assert bie.app("paddle-serving").configs["run-script"] == script.version
    assert any(line.outcome != "done" for line in lines), "nothing went wrong"


def a_day_of_work(bie):
    stubborn(partial(bie.put_config, model_config(named)))
    for number in range(4):
        stubborn(partial(bie.put_config, script_config(named, f"echo {number}\n")))
        stubborn(partial(bie.put_app, seed_app(named, selector="serves=x")))
    for number in range(4):
        stubborn(partial(bie.put_node, Node(f"node{number}", labels={"ring": str(number)})))
        stubborn(partial(bie.set_labels, f"node{number}", {"serves": "x"}, apps=("paddle-serving",)))


def stubborn(call):
    """Do what a person does on such a day: the same again, as errors say."""
    for _ in range(20):
        try:
            return call()
        except (Unavailable, Conflict, Interrupted) as error:
            last: CloudEdgeError = error
    raise last
