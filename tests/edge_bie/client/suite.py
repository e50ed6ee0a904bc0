"""What the client needs of a control plane, whichever it is: the lab, or a real baetyl-cloud.

Import everything from here into a test module that has a fixture `cloud` (an open `Bie`, with its settings), and, where
a second writer can be played, `admin_url`. Every test makes objects of its own names and leaves nothing behind.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from cloudedge.edge_bie.client import (
    App,
    Bie,
    Config,
    File,
    Mount,
    Node,
    Port,
    Registry,
    Secret,
    Service,
    Text,
    Volume,
    same,
)
from cloudedge.errors import Conflict, NotFound

MD5 = "7a2ca27f2f444c6ac169d19922ff89ab"
OWNED = {"cloudedge": "owned"}


@pytest.fixture
def named(cloud):
    """Make names of its own, and delete at the end whatever carries one."""
    tail = uuid.uuid4().hex[:8]
    yield lambda base: f"{base}-{tail}"
    for each in cloud.apps():
        if each.name.endswith(tail):
            cloud.delete_app(each.name)
    for each in cloud.nodes():
        if each.name.endswith(tail):
            cloud.delete_node(each.name)
    for kind, delete in (
        (cloud.configs, cloud.delete_config),
        (cloud.secrets, cloud.delete_secret),
        (cloud.registries, cloud.delete_registry),
    ):
        for each in kind():
            if each.name.endswith(tail):
                delete(each.name)


def seed_app(named, **changes):
    """Return the app of BIE's tutorial, without ports and matching no node."""
    app = App(
        name=named("paddle-serving"),
        labels=OWNED,
        services=(
            Service(
                name="paddle-serving",
                image="registry.baidubce.com/pp/paddle-serving:0.7.0-cpu-py36",
                args=("/bin/bash", "/home/work/script/run.sh"),
                env={"K": "v"},
                limits={"cpu": "2", "memory": "4Gi"},
                mounts=(
                    Mount("script", "/home/work/script", read_only=True),
                    Mount("model", "/home/work/yolov3", auto_clean=True),
                ),
            ),
        ),
        volumes=(Volume("script", config=named("run-script")), Volume("model", config=named("model"))),
    )
    return replace(app, **changes)


def model_config(named, md5=MD5):
    file = File(f"https://files.example/{md5}/model.zip", md5=md5, unpack="zip", sha256="ab" * 32)
    return Config(named("model"), {"model.zip": file}, labels=OWNED)


def script_config(named, text="#! /usr/bin/env bash\ncd /home/work/yolov3\npython3 web_service.py\n"):
    return Config(named("run-script"), {"run.sh": Text(text)}, labels=OWNED)


@pytest.fixture
def seeded(cloud, named):
    cloud.put_config(model_config(named))
    cloud.put_config(script_config(named))
    return cloud.put_app(seed_app(named))


def test_a_config_of_files_comes_back_as_it_was(cloud, named):
    wanted = model_config(named)
    written = cloud.put_config(wanted)
    assert written.version
    assert same(written, wanted)
    (item,) = written.items.values()
    assert (item.sha256, item.unpack, item.md5) == ("ab" * 32, "zip", MD5)
    assert cloud.config(wanted.name) == written


def test_list_and_get_give_the_same_config(cloud, named):
    wanted = [cloud.put_config(model_config(named)), cloud.put_config(script_config(named))]
    listed = {each.name: each for each in cloud.configs(selector="cloudedge=owned")}
    for each in wanted:
        assert same(listed[each.name], each)
        assert listed[each.name].version == each.version


def test_what_is_there_already_is_not_written(cloud, named):
    first = cloud.put_config(script_config(named))
    again = cloud.put_config(script_config(named))
    assert again.version == first.version


def test_texts_with_awkward_characters_survive(cloud, named):
    text = '<a href="&">中文\t{ { "quotes" } }\\n\n'
    assert cloud.put_config(script_config(named, text)).items["run.sh"] == Text(text)


def test_an_absent_object_is_none_and_deleting_it_is_fine(cloud, named):
    name = named("nothing")
    assert cloud.config(name) is None
    assert cloud.app(name) is None
    assert cloud.secret(name) is None
    assert cloud.registry(name) is None
    assert cloud.node(name) is None
    cloud.delete_config(name)
    cloud.delete_app(name)
    cloud.delete_secret(name)
    cloud.delete_registry(name)
    cloud.delete_node(name)
    with pytest.raises(NotFound):
        cloud.stats(name)


def test_an_app_comes_back_as_it_was_and_is_written_once(cloud, named, seeded):
    assert same(seeded, seed_app(named))
    assert all(seeded.configs.values())
    assert cloud.put_app(seed_app(named)).version == seeded.version
    assert cloud.app(seeded.name) == seeded


def test_a_list_of_apps_has_summaries(cloud, seeded):
    (listed,) = [each for each in cloud.apps() if each.name == seeded.name]
    assert listed.is_summary
    assert (listed.version, listed.labels["cloudedge"]) == (seeded.version, "owned")


def test_an_update_of_an_app_keeps_what_it_does_not_change(cloud, named, seeded):
    (service,) = seeded.services
    exposed = replace(service, ports=(Port(18082, host=18082),))
    changed = cloud.put_app(replace(seeded, services=(exposed,)))
    assert changed.host_ports == (18082,)
    assert changed.version != seeded.version
    assert changed.configs == seeded.configs
    back = cloud.put_app(seeded)
    assert not back.host_ports


def test_probes_do_not_make_a_second_write(cloud, named, seeded):
    probe = {"httpGet": {"path": "/health", "port": 18082}, "periodSeconds": 10}
    (service,) = seeded.services
    wanted = replace(seeded, services=(replace(service, extra={**service.extra, "livenessProbe": probe}),))
    first = cloud.put_app(wanted)
    assert cloud.put_app(wanted).version == first.version


def test_a_startup_probe_alone_is_a_change(cloud, named, seeded):
    probe = {"tcpSocket": {"port": 18082}, "failureThreshold": 30}
    (service,) = seeded.services
    for expected in (probe, {**probe, "failureThreshold": 60}):
        wanted = replace(seeded, services=(replace(service, extra={**service.extra, "startupProbe": expected}),))
        changed = cloud.put_app(wanted)
        assert changed.services[0].extra["startupProbe"]["failureThreshold"] == expected["failureThreshold"]
        assert cloud.put_app(wanted).version == changed.version


def test_an_updated_config_reaches_its_apps_however_fast(cloud, named, seeded):
    for number in range(3):
        text = script_config(named, f"echo {number}\n")
        written = cloud.put_config(text)
        assert cloud.app(seeded.name).configs[text.name] == written.version


def test_a_config_in_use_cannot_be_deleted(cloud, named, seeded):
    with pytest.raises(Conflict) as caught:
        cloud.delete_config(named("model"))
    assert caught.value.request_id in str(caught.value)
    cloud.delete_app(seeded.name)
    cloud.delete_config(named("model"))
    assert cloud.config(named("model")) is None


def test_who_mounts_a_config(cloud, named, seeded):
    assert [app.name for app in cloud.apps_of("config", named("model"))] == [seeded.name]


def test_secrets_come_back_and_are_not_shown(cloud, named):
    wanted = Secret(named("keys"), {"token": "t0p", "other": "x"}, description="of ours")
    written = cloud.put_secret(wanted)
    assert same(written, wanted)
    assert "t0p" not in repr(written)
    assert cloud.put_secret(wanted).version == written.version
    changed = cloud.put_secret(replace(wanted, data={"token": "new"}))
    assert changed.data == {"token": "new"}
    (listed,) = [each for each in cloud.secrets() if each.name == wanted.name]
    assert not listed.data


def test_a_registry_takes_a_new_description_and_a_new_password(cloud, named):
    wanted = Registry(named("images"), "registry.example", "ci", password="p4ss", description="one")
    written = cloud.put_registry(wanted)
    assert (written.address, written.username, written.password) == ("registry.example", "ci", "")
    assert "p4ss" not in repr(wanted)
    assert cloud.put_registry(replace(wanted, description="two")).description == "two"
    cloud.refresh_registry(wanted.name, "n3w")
    assert wanted.name in {each.name for each in cloud.registries()}


def test_a_registry_is_no_secret_and_the_other_way_round(cloud, named):
    """BIE keeps both in one place, shows each as the other, and would write one over the other."""
    registry = cloud.put_registry(Registry(named("images"), "registry.example", "ci", password="p4ss"))
    secret = cloud.put_secret(Secret(named("keys"), {"a": "1"}))
    assert cloud.secret(registry.name) is None
    assert cloud.registry(secret.name) is None
    with pytest.raises(Conflict, match="belongs to a registry"):
        cloud.put_secret(Secret(registry.name, {"a": "1"}))
    with pytest.raises(Conflict, match="belongs to a secret"):
        cloud.put_registry(Registry(secret.name, "registry.example", "ci", password="p4ss"))
    cloud.delete_secret(registry.name)
    cloud.delete_registry(secret.name)
    assert cloud.registry(registry.name) == registry
    assert cloud.secret(secret.name) == secret
    disguised = cloud.put_secret(Secret(named("login"), {"address": "a", "username": "u", "password": "p"}))
    assert cloud.secret(named("login")) == disguised


def test_an_app_with_a_registry_keeps_it(cloud, named, seeded):
    name = named("images")
    cloud.put_registry(Registry(name, "registry.example", "ci", password="p4ss"))
    with_registry = cloud.put_app(replace(seeded, registries=(name,)))
    assert with_registry.registries == (name,)
    described = cloud.put_app(replace(with_registry, description="described"))
    assert described.registries == (name,)


def test_a_node_gets_labels_and_the_apps_that_match(cloud, named, seeded):
    node = cloud.put_node(Node(named("node"), labels={"ring": "canary"}))
    assert node.labels["baetyl-node-name"] == node.name
    assert node.ready == "never"
    label = {"serves": "yolov3"}
    app = cloud.put_app(replace(seeded, selector="serves=yolov3"))
    moved = cloud.set_labels(node.name, label, apps=(app.name,))
    assert moved.desire_apps[app.name] == app.version
    assert moved.labels["ring"] == "canary"
    assert cloud.set_labels(node.name, label).version == moved.version, "nothing to change, nothing written"
    away = cloud.set_labels(node.name, {"serves": None, "ring": "wide"})
    assert "serves" not in away.labels
    assert app.name not in away.desire_apps
    assert away.labels["ring"] == "wide"


def test_a_node_keeps_its_other_fields_when_labels_move(cloud, named):
    node = cloud.put_node(Node(named("node"), description="the one in the hall"))
    moved = cloud.set_labels(node.name, {"a": "1"})
    assert moved.description == "the one in the hall"
    assert moved.accelerator == node.accelerator
    assert moved.extra.get("sysApps") == node.extra.get("sysApps")


def test_putting_a_node_that_is_there_changes_nothing(cloud, named):
    node = cloud.put_node(Node(named("node"), labels={"a": "1"}))
    assert cloud.put_node(Node(node.name, labels={"a": "2"})).labels["a"] == "1"


def test_nodes_are_listed_over_pages_and_by_label(cloud, named):
    names = {cloud.put_node(Node(named(f"n{i}"), labels={"page": named("x")})).name for i in range(5)}
    selector = f"page={named('x')}"
    assert {node.name for node in cloud.nodes(selector=selector, page_size=2)} == names
    assert {node.name for node in cloud.nodes(selector=selector)} == names
    assert cloud.stats(min(names)).name == min(names)


def test_properties_are_changed_one_by_one(cloud, named):
    node = cloud.put_node(Node(named("node")))
    assert cloud.properties(node.name).desired == {}
    cloud.set_properties(node.name, {"site": "a", "floor": "2"})
    assert cloud.set_properties(node.name, {"floor": None}).desired == {"site": "a"}


def test_an_app_name_that_is_taken_is_an_update_not_a_failure(cloud, named, seeded):
    with Bie(cloud.settings) as other:
        assert other.put_app(replace(seeded, description="by another")).description == "by another"


def test_threads_of_one_client_that_move_labels_of_one_node_lose_none(cloud, named):
    node = cloud.put_node(Node(named("node")))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: cloud.set_labels(node.name, {f"label{i}": "1"}), range(8)))
    assert {f"label{i}" for i in range(8)} <= set(cloud.node(node.name).labels)
