"""What BIE would take and nodes would choke on is refused before it is sent, and the message says why."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge.edge_bie.client import (
    App,
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
    check_app,
    check_config,
    check_node,
    check_registry,
    check_secret,
    matches,
)
from cloudedge.errors import InputError

pytestmark = pytest.mark.rules

URL = "https://files.example/x.zip"


def file(**other):
    return Config("model", {"x.zip": File(**{"url": URL, **other})})


def app(service=None, **other):
    service = service or Service("main", image="i")
    return App(**{"name": "serving", "services": (service,), **other})


CONFIGS = {
    "upper-case name": (Config("Model"), "not one BIE takes"),
    "BIE's own name": (Config("my-baetyl-x"), "contains 'baetyl'"),
    "one character": (Config("x"), "2 to 63"),
    "odd key": (Config("model", {"a b": Text("")}), "config key 'a b'"),
    "key that looks like a file's": (Config("model", {"_object_x": Text("")}), "config key '_object_x'"),
    "number for a text": (Config("model", {"a": Text(1)}), "a is 1, a int; BIE accepts only strings"),
    "template in a text": (Config("model", {"a": Text("x {{.y}}")}), r"data\[0\].value.value contains '{{'"),
    "template in a description": (Config("model", description="{{"), "description contains '{{'"),
    "texts and files": (Config("model", {"a": Text(""), "b": File(URL)}), "Split it into two configs"),
    "upper-case md5": (file(md5="A" * 32), "not 32 lower-case hex digits"),
    "md5 in base64": (file(md5="eiyif09nbGNq"), "not 32 lower-case hex digits"),
    "short sha256": (file(sha256="ab"), "not 64 lower-case hex digits"),
    "rar": (file(unpack="rar"), "unpack 'rar' fails on every node"),
    "boolean unpack": (file(unpack=True), "unpack is True, a bool; BIE accepts only strings"),
    "no url": (file(url=""), "download by HTTP, and its url is ''"),
    "bos url": (file(url="bos://b/k"), "download by HTTP"),
    "presigned url": (file(url=URL + "?authorization=bce-auth-v1"), "will expire"),
    "presigned by S3": (file(url=URL + "?X-Amz-Signature=1"), "will expire"),
    "label with a blank": (Config("model", labels={"a": "b c"}), "label a='b c' is invalid in Kubernetes"),
    "number for a label": (Config("model", labels={"a": 1}), "label a=1 is invalid in Kubernetes"),
    "too large": (Config("model", {"a": Text("x" * (4 << 20))}), "and BIE stores less than 4194304"),
}

APPS = {
    "dots in the name": (app(name="a.b"), "a letter first"),
    "long name": (app(name="a" * 56), "2 to 55"),
    "no replica": (app(replica=0), "replica 0 runs nothing"),
    "boolean replica": (app(replica=True), "replica True runs nothing"),
    "statefulset": (app(workload="statefulset"), "nodes do not run the workload statefulset"),
    "long selector": (app(selector="x" * 256), "its selector has 256 characters, and BIE stores 255"),
    "host port of two": (app(Service("web", "i", ports=(Port(1, host=2),)), replica=2), "host port 2, so its replica"),
    "host port twice": (app(Service("web", "i", ports=(Port(1, 2), Port(3, 2)))), "host port 2/TCP is used twice"),
    "no image": (app(Service("web")), "service web has no image"),
    "service with a dot": (app(Service("m.x", "i")), "service name .m.x. is not one BIE takes"),
    "service of one letter": (app(Service("m", "i")), "2 to 63 of a-z, 0-9 and '-'"),
    "mount of nothing": (app(Service("web", "i", mounts=(Mount("v", "/v"),))), "which is no volume of the app"),
    "volume twice": (app(volumes=(Volume("vv"), Volume("vv"))), "two volumes with one name"),
    "volume of one letter": (app(volumes=(Volume("v"),)), "volume name 'v'"),
    "template in an argument": (app(Service("web", "i", args=("{{x}}",))), r"services\[0\].args\[0\] contains '{{'"),
    "template in a variable": (app(Service("web", "i", env={"a": "{{x}}"})), "contains '{{'"),
    "number in a variable": (app(Service("web", "i", env={"a": 1})), "a is 1, a int"),
    "number as a limit": (app(Service("web", "i", limits={"cpu": 2})), "cpu is 2, a int"),
    "summary": (app(is_summary=True), "cannot be written"),
    "label": (app(labels={"-a": ""}), "label '-a'"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "message"), CONFIGS.values(), ids=CONFIGS)
def test_configs_that_nodes_choke_on(config, message):
    with pytest.raises(InputError, match=message):
        check_config(config)


@pytest.mark.parametrize(("wanted", "message"), APPS.values(), ids=APPS)
def test_apps_that_nodes_choke_on(wanted, message):
    with pytest.raises(InputError, match=message):
        check_app(wanted)


def test_what_is_right_passes():
    check_config(file(md5="a" * 32, sha256="b" * 64, unpack="tgz"))
    check_config(Config("model", {"a": Text("{ { } } { {")}, labels={"example.com/a": "", "b": "x_y.Z"}))
    check_app(app(selector="s" * 255, replica=3, workload="daemonset"))
    check_app(app(Service("web", "i", ports=(Port(1, 2), Port(1, 2, "UDP"))), replica=1))
    check_node(Node("a.b", labels={"ring": "1"}))


def test_secrets_are_refused_without_being_repeated():
    for secret in (
        Secret("s-s", {"a b": "s3cret"}),
        Secret("s-s", {"a": ["s3cret"]}),
        Secret("s-s", {"a": "s3cret" * 20000}),
    ):
        with pytest.raises(InputError) as caught:
            check_secret(secret)
        assert "s3cret" not in str(caught.value)
        assert "s3cret" not in repr(secret)
    with pytest.raises(InputError, match="is empty"):
        check_secret(Secret("s-s"))


def test_a_registry_needs_an_address_and_a_user():
    with pytest.raises(InputError, match="needs an address and a username"):
        check_registry(Registry("r-r", address="x"))


SELECTORS = {
    "": False,
    "a=1": True,
    "a==1": True,
    "a=2": False,
    "a!=2": True,
    "a": True,
    "!a": False,
    "!c": True,
    "a in (1, 2)": True,
    "a notin (1,2)": False,
    "c notin (1)": True,
    "a=1,b in (x,y)": True,
    "a=1,b in (y)": False,
    "x/y=z": True,
}


@pytest.mark.parametrize(("selector", "expected"), SELECTORS.items(), ids=str)
def test_selectors(selector, expected):
    assert matches(selector, {"a": "1", "b": "x", "x/y": "z"}) is expected


def test_what_is_no_selector():
    with pytest.raises(InputError, match="is not a label selector"):
        matches("a=1=2", {})


@given(st.text(), st.text())
def test_no_text_with_two_braces_ever_passes(before, after):
    with pytest.raises(InputError):
        check_config(Config("model", {"a": Text(before + "{{" + after)}))


@given(st.from_regex(re.compile(r"[a-z0-9][-a-z0-9.]{0,61}[a-z0-9]"), fullmatch=True))
def test_every_name_of_bies_passes_but_its_own(name):
    if "baetyl" not in name:
        assert check_config(Config(name)).name == name
