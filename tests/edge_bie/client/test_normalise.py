"""One object, however it is shown: forms, orders and what the server adds make no difference; anything else does."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudedge.edge_bie.client import MASK, App, Config, File, Node, Registry, Secret, Text, masked, normal, same
from cloudedge.edge_bie.client._diff import compare
from cloudedge.edge_bie.client._normalise import differences, kept_by_server
from cloudedge.edge_bie.client._resources import read_as
from cloudedge.errors import Unavailable

pytestmark = pytest.mark.rules

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
keys = st.from_regex(r"[-._a-zA-Z0-9]{1,8}", fullmatch=True)
names = st.from_regex(r"[a-z0-9]{2,8}", fullmatch=True)
maps = st.dictionaries(keys, words, max_size=3)
files = st.builds(
    File,
    url=words,
    md5=words,
    unpack=st.sampled_from(["", "zip", "tar", "tgz"]),
    sha256=words,
    source=st.sampled_from(["http", "awss3"]),
    extra=st.dictionaries(st.sampled_from(["ak", "sk", "bucket", "object"]), words, max_size=3),
)
configs = st.builds(
    Config,
    name=names,
    items=st.dictionaries(keys, st.one_of(st.builds(Text, value=words), files), max_size=4),
    labels=maps,
    description=words,
)
json_values = st.recursive(
    st.one_of(words, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=3,
)
services = st.builds(
    lambda name, image, args, env, ports, extra: {
        **extra,
        "name": name,
        "image": image.strip(),
        "args": args,
        "env": [{"name": k, "value": v} for k, v in env.items()],
        "ports": ports,
    },
    names,
    words,
    st.lists(words, max_size=3),
    maps,
    st.lists(st.fixed_dictionaries({"containerPort": st.integers(1, 9), "hostPort": st.integers(1, 9)}), max_size=2),
    st.dictionaries(st.sampled_from(["livenessProbe", "security", "imagePullPolicy"]), json_values, max_size=2),
)
apps = st.builds(
    lambda name, services, volumes, labels, replica, extra: {
        **extra,
        "name": name,
        "services": services,
        "volumes": [{"name": f"v{i}", "config": {"name": each}} for i, each in enumerate(volumes)],
        "labels": labels,
        "replica": replica,
    },
    names,
    st.lists(services, max_size=2),
    st.lists(names, max_size=2),
    maps,
    st.integers(1, 5),
    st.dictionaries(st.sampled_from(["nodeSelector", "preserveUpdates", "hostNetwork", "newField"]), json_values),
)


def internal(config):
    """Show a config the way lists do."""
    data = {}
    for key, item in config.items.items():
        if isinstance(item, Text):
            data[key] = item.value
        else:
            value = item.to_value()
            about = {"url": value.get("url"), "md5": value.get("md5"), "unpack": value.get("unpack")}
            data[f"_object_{key}"] = json.dumps({**about, "metadata": {**value, "userID": "u"}})
    return {"name": config.name, "labels": dict(config.labels), "description": config.description, "data": data}


@settings(max_examples=30)
@given(configs)
def test_a_config_survives_both_forms(config):
    view = {**config.to_json(), "version": "1", "createTime": "now", "namespace": "n", "system": False}
    assert same(Config.from_json(view), config)
    assert same(Config.from_json(internal(config)), config)
    assert normal(Config.from_json(view)) == normal(Config.from_json(internal(config)))


@settings(max_examples=30)
@given(configs, st.randoms())
def test_the_order_of_items_does_not_matter(config, random):
    view = config.to_json()
    random.shuffle(view["data"])
    assert same(Config.from_json(view), config)


@settings(max_examples=30)
@given(configs, configs)
def test_same_is_no_difference_and_the_other_way_round(one, other):
    assert same(one, other) == (not differences(one, other))
    assert not differences(one, one)


@settings(max_examples=30)
@given(apps)
def test_an_app_survives_being_read_and_written(value):
    app = App.from_json(value)
    again = App.from_json(app.to_json())
    assert same(again, app)
    assert normal(App.from_json(again.to_json())) == normal(app)


@settings(max_examples=30)
@given(apps, st.text("0123456789abcdef", min_size=1))
def test_what_the_server_adds_is_no_difference(value, version):
    app = App.from_json(value)
    shown = app.to_json()
    shown |= {"version": version, "createTime": "2024-01-01T00:00:00Z", "cronTime": "0001-01-01T00:00:00Z"}
    shown |= {"namespace": "n", "cronStatus": 0, "ota": {}, "autoScaleCfg": {}, "system": False}
    shown.setdefault("dnsPolicy", "ClusterFirst")
    shown["jobConfig"] = {"restartPolicy": "Never", "completions": 0}
    shown["labels"] = {**shown["labels"], "baetyl-app-mode": "kube"}
    for service in shown["services"]:
        service |= {"type": "deployment", "replica": shown["replica"], "jobConfig": {"restartPolicy": "Never"}}
        for port in service.get("ports", ()):
            port["serviceType"] = "ClusterIP"
    for volume in shown["volumes"]:
        volume["config"]["version"] = version
    assert same(App.from_json(shown), app)


@settings(max_examples=30)
@given(apps, st.sampled_from(["selector", "description", "nodeSelector"]))
def test_what_somebody_changed_is_a_difference(value, field):
    app = App.from_json(value)
    changed = App.from_json({**app.to_json(), field: "something else"})
    assert not same(changed, app)
    assert [d.path for d in differences(app, changed)] == [field]


def test_a_startup_probe_counts_and_a_blank_at_the_end_does_not():
    app = App.from_json({"name": "a", "services": [{"name": "s", "startupProbe": {"periodSeconds": 1}}]})
    other = App.from_json({"name": "a", "services": [{"name": "s", "startupProbe": {"periodSeconds": 2}}]})
    assert not same(app, other)
    assert same(app, replace(app, description=" "))


def test_an_update_sends_back_what_the_server_wants_back():
    raw = {"version": "1", "createTime": "x", "cronStatus": 2, "autoScaleCfg": None, "selector": "s"}
    assert kept_by_server(raw) == {"version": "1", "createTime": "x", "cronStatus": 2, "autoScaleCfg": {}}
    scaled = {"autoScaleCfg": {"minReplicas": 1}}
    assert "autoScaleCfg" not in kept_by_server(scaled), "a real one is the desired state's to give"


def test_services_read_back_do_not_carry_copies_of_the_app():
    app = App.from_json({"name": "a", "mode": "kube", "services": [{"name": "s", "hostNetwork": True, "replica": 1}]})
    assert not app.services[0].extra
    native = App.from_json({"name": "a", "mode": "native", "services": [{"name": "s", "replica": 3}]})
    assert native.services[0].extra == {"replica": 3}


def test_unknown_fields_are_kept_and_written_back():
    config = Config.from_json({"name": "c", "data": [], "colour": "red"})
    assert config.to_json()["colour"] == "red"
    app = App.from_json({"name": "a", "shape": {"round": True}})
    assert app.to_json()["shape"] == {"round": True}
    node = Node.from_json({"name": "n", "sysApps": ["x"], "taste": "sour", "report": {}, "desire": {}, "ready": 1})
    body = node.to_json()
    assert (body["sysApps"], body["taste"]) == (["x"], "sour")
    assert not {"report", "desire", "ready"} & set(body)


def test_masking_reaches_everything():
    value = {"data": [{"value": {"ak": "1", "sk": "2", "url": "u"}}], "password": "3", "x": ({"token": "4"},)}
    text = json.dumps(masked(value))
    assert text.count(MASK) == 4
    assert masked({"data": {"a": "1"}}, everything=True) == {"data": {"a": MASK}}
    assert masked({"password": ""}) == {"password": ""}, "that there is none is no secret"


def test_differences_show_no_secret():
    old = Secret("s-s", {"a": "s3cret1"})
    for new in (Secret("s-s", {"a": "s3cret2"}), Secret("s-s", {"b": "s3cret1"})):
        shown = differences(old, new)
        assert shown
        assert "s3cret" not in repr(shown)
    one = Config("c", {"f": File("u", extra={"ak": "s3cretA", "sk": "s3cretB"})})
    other = Config("c", {"f": File("u", extra={"ak": "s3cretC", "sk": "s3cretB"})})
    assert "s3cret" not in repr(differences(one, other))
    assert "s3cret" not in repr((one, other, old, Registry("r", password="s3cret")))
    created = list(compare({}, normal(one)))
    assert "s3cret" not in repr(created)


def test_a_report_with_holes_is_read():
    node = Node.from_json(
        {"name": "n", "ready": 7, "report": {"appstats": [{"cause": "no"}, 3], "node": None, "apps": {"a": 1}}}
    )
    assert (node.ready, node.report.app_stats[0].cause, node.report.apps) == ("never", "no", {})


@settings(max_examples=100)
@given(
    st.sampled_from([Config, App, Node, Secret, Registry]),
    st.dictionaries(
        st.sampled_from(
            ["name", "data", "labels", "services", "volumes", "registries", "report", "desire", "replica", "ready"]
        ),
        json_values,
    ),
)
def test_any_json_is_an_object_or_an_error_of_ours(model, value):
    """A control plane, or something in its place, may answer anything."""
    with suppress(Unavailable):
        read_as(model, value)
