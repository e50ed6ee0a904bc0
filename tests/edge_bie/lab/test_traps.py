"""The traps of BIE are in the lab: what silently goes wrong there goes wrong here."""

from __future__ import annotations

import time

import pytest
import requests

from cloudedge.clock import ManualClock
from cloudedge.edge_bie.lab import Lab
from tests.edge_bie.lab.transcript import app, model

pytestmark = pytest.mark.parts

SAME_SECOND = 40


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path, seed=7) as running:
        yield running


def ask(lab, method, path, body=None, **options):
    return requests.request(method, lab.admin_url + path, json=body, timeout=10, **options)


def good(lab, method, path, body=None):
    answer = ask(lab, method, path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def report(lab, node, body, **headers):
    named = {"common-name": f"{lab.namespace}.{node}", "source": "baetyl-core", **headers}
    return requests.post(f"{lab.sync_url}/v1/sync/report", json=body, headers=named, timeout=10)


def mounting(name, config, **fields):
    return app(name, volumes=[{"name": "model", "config": {"name": config}}], **fields)


def test_an_item_of_unknown_type_is_dropped_without_a_word(lab):
    items = [{"key": "a", "value": {"type": "kv", "value": "1"}}, {"key": "b", "value": {"type": "KV", "value": "2"}}]
    made = good(lab, "POST", "/v1/configs", {"name": "c1", "data": items})
    assert [item["key"] for item in made["data"]] == ["a"]


def test_two_changes_in_one_second_may_leave_an_app_on_the_first(lab):
    good(lab, "POST", "/v1/configs", model("c1"))
    good(lab, "POST", "/v1/apps", mounting("a1", "c1"))
    lagging = 0
    for number in range(SAME_SECOND):
        newest = good(lab, "PUT", "/v1/configs/c1", model("c1", md5=f"{number:032x}"))["version"]
        pinned = good(lab, "GET", "/v1/apps/a1")["volumes"][0]["config"]["version"]
        lagging += pinned != newest
        assert pinned >= newest or pinned[:10] == newest[:10]
    assert lagging
    # Putting the app pins it again, whatever its versions look like.
    good(lab, "PUT", "/v1/apps/a1", good(lab, "GET", "/v1/apps/a1"))
    assert good(lab, "GET", "/v1/apps/a1")["volumes"][0]["config"]["version"] == newest


def test_the_step_from_999_to_1000_is_not_propagated(lab):
    assert ask(lab, "PUT", "/_lab/settings", {"nextVersion": 998}).json()["nextVersion"] == 998
    good(lab, "POST", "/v1/configs", model("c1"))
    good(lab, "POST", "/v1/apps", mounting("a1", "c1"))
    assert good(lab, "GET", "/v1/configs/c1")["version"] == "998"
    good(lab, "PUT", "/v1/configs/c1", model("c1", md5="1" * 32))
    assert good(lab, "GET", "/v1/configs/c1")["version"] == "1000"
    assert good(lab, "GET", "/v1/apps/a1")["volumes"][0]["config"]["version"] == "998"


def test_an_error_repeats_only_the_id_that_was_sent(lab):
    bare = ask(lab, "GET", "/v1/configs/none")
    assert bare.json()["requestId"] == ""
    assert bare.headers["x-bce-request-id"]
    named = ask(lab, "GET", "/v1/configs/none", headers={"x-bce-request-id": "mine"})
    assert (named.json()["requestId"], named.headers["x-bce-request-id"]) == ("mine", "mine")


def test_a_taken_name_is_403_for_an_app_and_400_for_the_rest(lab):
    for path, body in (("configs", {"name": "c1"}), ("nodes", {"name": "n1"}), ("apps", app("a1"))):
        good(lab, "POST", f"/v1/{path}", body)
        again = ask(lab, "POST", f"/v1/{path}", body)
        assert (again.status_code, again.json()["code"]) == (
            (403, "ErrResourceHasBeenUsed") if path == "apps" else (400, "ErrRequestParamInvalid")
        )


def test_lists_hide_system_objects_and_show_the_internal_form(lab):
    good(lab, "POST", "/v1/nodes", {"name": "n1"})
    good(lab, "POST", "/v1/configs", model("c1"))
    listed = good(lab, "GET", "/v1/configs")
    assert [item["name"] for item in listed["items"]] == ["c1"]
    assert list(listed["items"][0]["data"]) == ["_object_m.zip"]
    hidden = good(lab, "GET", "/v1/configs?selector=baetyl-cloud-system%3Dtrue")
    assert hidden["total"] == 3


def test_a_node_that_is_replaced_loses_what_is_left_out(lab):
    good(
        lab,
        "POST",
        "/v1/nodes",
        {"name": "n1", "labels": {"a": "b"}, "accelerator": "nvidia", "sysApps": ["baetyl-rule"]},
    )
    assert len(good(lab, "GET", "/v1/nodes/n1")["desire"]["sysapps"]) == 4
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"c": "d"}})
    node = good(lab, "GET", "/v1/nodes/n1")
    assert node["labels"] == {"c": "d", "baetyl-node-name": "n1"}
    assert "accelerator" not in node
    assert len(node["desire"]["sysapps"]) == 3


def test_an_offline_node_has_no_status(tmp_path):
    clock = ManualClock()
    with Lab(tmp_path, clock=clock) as lab:
        good(lab, "POST", "/v1/nodes", {"name": "n1"})
        assert good(lab, "GET", "/v1/nodes/n1")["ready"] == 0
        stats = [{"name": "a", "version": "1", "status": "Running"}]
        assert report(lab, "n1", {"apps": [], "appstats": stats}).status_code == 200
        clock.elapsed += 39
        node = good(lab, "GET", "/v1/nodes/n1")
        assert (node["ready"], node["report"]["appstats"][0]["status"]) == (1, "Running")
        clock.elapsed += 1
        node = good(lab, "GET", "/v1/nodes/n1")
        assert node["ready"] == 2
        assert "status" not in node["report"]["appstats"][0]
        good(lab, "PUT", "/v1/nodes/n1/core/configs", {"version": "v2.4.3", "frequency": 300, "apiport": 30050})
        assert good(lab, "GET", "/v1/nodes/n1")["ready"] == 1


def test_time_can_be_made_to_fly_for_nodes(lab):
    good(lab, "POST", "/v1/nodes", {"name": "n1"})
    report(lab, "n1", {"apps": []})
    assert ask(lab, "PUT", "/_lab/settings", {"rate": 10_000}).ok
    deadline = time.monotonic() + 10
    while good(lab, "GET", "/v1/nodes/n1")["ready"] != 2:
        assert time.monotonic() < deadline


def test_a_node_that_was_not_made_here_is_told_so(lab):
    assert report(lab, "n1", {"apps": []}).json()["code"] == "ErrResourceNotFound"
    good(lab, "POST", "/v1/nodes", {"name": "n1"})
    for name in [entry["name"] for entry in good(lab, "GET", "/v1/nodes/n1")["desire"]["sysapps"]]:
        assert ask(lab, "DELETE", f"/v1/apps/{name}").json()["code"] == "nonBaetyl"
    nameless = requests.post(f"{lab.sync_url}/v1/sync/report", json={}, timeout=10)
    assert (nameless.status_code, nameless.json()["code"]) == (401, "ErrRequestAccessDenied")


def test_one_missing_object_fails_the_whole_request(lab):
    good(lab, "POST", "/v1/nodes", {"name": "n1"})
    good(lab, "POST", "/v1/configs", model("c1"))
    wanted = [{"kind": "config", "name": "c1"}, {"kind": "config", "name": "none"}]
    named = {"common-name": f"{lab.namespace}.n1"}
    answer = requests.post(f"{lab.sync_url}/v1/sync/desire", json={"infos": wanted}, headers=named, timeout=10)
    assert answer.status_code == 404


def test_a_reference_into_a_store_cannot_be_signed(lab):
    value = {"type": "object", "source": "baidubos", "bucket": "b", "object": "o"}
    good(lab, "POST", "/v1/configs", {"name": "c1", "data": [{"key": "k", "value": value}]})
    good(lab, "POST", "/v1/nodes", {"name": "n1"})
    wanted = {"infos": [{"kind": "config", "name": "c1"}]}
    named = {"common-name": f"{lab.namespace}.n1"}
    assert requests.post(f"{lab.sync_url}/v1/sync/desire", json=wanted, headers=named, timeout=10).status_code == 400


def test_an_app_that_waits_for_its_time_waits_for_ever(lab):
    good(lab, "POST", "/v1/nodes", {"name": "n1", "labels": {"a": "b"}})
    made = good(lab, "POST", "/v1/apps", app("a1", selector="a=b", cronStatus=1, cronTime="2037-01-01T00:00:00Z"))
    assert "selector" not in made
    assert good(lab, "GET", "/v1/apps/a1")["selector"] == "a=b"
    assert good(lab, "GET", "/v1/nodes/n1")["desire"]["apps"] == []
