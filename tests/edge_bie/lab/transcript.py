"""Asks a control plane many things and writes down what it says, so that two of them can be compared.

What differs between any two runs is replaced: versions by V1, V2 ... in the order they show up, so that "the same" and
"another one" stay visible; times by T; random parts of names by R. Order is kept where the control plane promises one.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import requests

GOLDEN = Path(__file__).parent / "golden"
"""What both say, a file for each scene."""
VERSION = re.compile(r"(?<![0-9.])[0-9]{10}[a-z0-9]{6}(?![a-z0-9])")
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
RANDOM = re.compile(r"((?:baetyl-[a-z]+(?:-conf)?|crt-[-a-z0-9]+)-)[a-z0-9]{9}\b")


class Transcript:
    def __init__(self, admin_url: str, sync_url: str, namespace: str = "baetyl-cloud") -> None:
        self.admin_url, self.sync_url, self.namespace = admin_url, sync_url, namespace
        self.lines: list[str] = []
        self._versions: dict[str, str] = {}
        self._http = requests.Session()

    def ask(self, method: str, path: str, body: Any = None, *, data: bytes | None = None, note: bool = True) -> Any:
        headers = {"x-bce-request-id": "r-1"}
        answer = self._http.request(method, self.admin_url + path, json=body, data=data, headers=headers, timeout=30)
        return self._note(f"{method} {path}", answer, note=note)

    def sync(self, node: str, what: str, body: Any, *, source: str = "baetyl-core", note: bool = True) -> Any:
        headers = {"common-name": f"{self.namespace}.{node}", "kind": what, "source": source}
        answer = self._http.post(f"{self.sync_url}/v1/sync/{what}", json=body, headers=headers, timeout=30)
        return self._note(f"{node} {what} {source}", answer, note=note)

    def _note(self, asked: str, answer: requests.Response, *, note: bool) -> Any:
        found = answer.json()
        if note:
            if asked.endswith("/apps") and "items" in found:  # which apps these are, in no order
                found["items"].sort(key=lambda item: item["name"])
            shown = self._normal(found)
            if answer.status_code >= 400:
                shown["message"] = shown["message"].partition("(")[0].strip() if shown["code"][:3] == "Err" else ""
            self.lines.append(
                f"{asked} -> {answer.status_code} {json.dumps(shown, sort_keys=True, ensure_ascii=False)}"
            )
        return found

    def _normal(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if "nodeMode" in value:
                value = {**value, "version": "a node's own"}  # changes with every touch, and means nothing
            return {self._normal(k): self._normal(v, k) for k, v in sorted(value.items())}
        if isinstance(value, list):
            if key == "data":  # the items of a config come in any order
                value = sorted(value, key=lambda item: item["key"])
            if key == "sysapps":  # a second that ends while a node is made changes their order
                value = sorted(value, key=lambda item: item["name"])
            return [self._normal(item) for item in value]
        if not isinstance(value, str):
            return value
        if value.startswith("{") and value.endswith("}"):
            return self._normal(json.loads(value))
        value = RANDOM.sub(r"\1R", TIME.sub("T", value))
        return VERSION.sub(lambda match: self._versions.setdefault(match[0], f"V{len(self._versions) + 1}"), value)


def model(name: str, **value: str) -> dict[str, Any]:
    given = {"type": "object", "source": "http", "url": "http://127.0.0.1:1/m.zip", "md5": "ab" * 16, "unpack": "zip"}
    return {"name": name, "labels": {"a": "b"}, "data": [{"key": "m.zip", "value": {**given, **value}}]}


def app(name: str, **fields: Any) -> dict[str, Any]:
    service = {"name": "web", "image": " registry.example/serving:1 ", "args": ["/bin/bash", "/run.sh"]}
    return {"name": name, "replica": 1, "services": [service], **fields}


def configs(t: Transcript) -> None:
    t.ask("POST", "/v1/configs", model("con-model"))
    t.ask("GET", "/v1/configs/con-model")
    t.ask("POST", "/v1/configs", model("con-model"))
    t.ask("PUT", "/v1/configs/con-model", model("con-model"))
    t.ask("PUT", "/v1/configs/con-model", {**model("other-name"), "description": "changed"})
    t.ask("GET", "/v1/configs?name=con-model")
    t.ask("PUT", "/v1/configs/con-absent", model("con-absent"))
    t.ask("GET", "/v1/configs/con-absent")
    t.ask("DELETE", "/v1/configs/con-absent")
    t.ask("GET", "/v1/configs/con-model/apps")
    t.ask("GET", "/v1/configs/con-absent/apps")
    items = [{"key": "kept", "value": {"type": "kv", "value": "text"}}, {"key": "typo", "value": {"type": "kvs"}},
             {"key": "none", "value": {"value": "x"}}, {"key": "empty", "value": {"type": "kv"}},
             {"key": "nothing"}]  # fmt: skip
    t.ask("POST", "/v1/configs", {"name": "con-items", "data": items, "unknown": 1})
    t.ask("GET", "/v1/configs/con-items")
    # Left-out labels are something else than none; sent as an empty object they are the same.
    t.ask("PUT", "/v1/configs/con-items", {"name": "con-items", "data": items[:1] + items[3:4]})
    t.ask("PUT", "/v1/configs/con-items", {"name": "con-items", "data": items[:1] + items[3:4], "labels": {}})
    t.ask("POST", "/v1/configs", {"name": "con-empty"})
    t.ask("GET", "/v1/configs/con-empty")
    t.ask("DELETE", "/v1/configs/con-empty")
    for bad in (
        {"name": "con_bad"}, {"name": "x"}, {"name": "a" * 64}, {"name": "my-baetyl-thing"}, {},
        model("con-bad", source="") | {"name": "con-bad"},
        {"name": "con-bad", "data": [{"key": "k", "value": {"type": "object"}}]},
        {"name": "con-bad", "data": [{"key": "k", "value": {"type": "object", "source": "http"}}]},
        {"name": "con-bad", "data": [{"key": "k", "value": {"type": "function"}}]},
        {"name": "con-bad", "data": [{"key": "a/b", "value": {"type": "kv", "value": ""}}]},
        {"name": "con-bad", "data": [{"key": "_object_x", "value": {"type": "kv", "value": ""}}]},
        {"name": "con-bad", "data": [{"key": "k", "value": {"type": "kv", "value": 1}}]},
        {"name": "con-bad", "data": [{"key": "k", "value": {"type": "kv", "value": True}}]},
        {"name": "con-bad", "data": {"k": "v"}}, {"name": "con-bad", "labels": {"a": 1}}, {"name": 7},
        {"name": "con-large", "data": [{"key": "k", "value": {"type": "kv", "value": "x" * (4 << 20)}}]},
    ):  # fmt: skip
        t.ask("POST", "/v1/configs", bad)
        t.ask("DELETE", "/v1/configs/con-bad", note=False)
    t.ask("POST", "/v1/configs", data=b"{nonsense")
    t.ask("POST", "/v1/configs", data=b"[]")
    t.ask("PUT", "/v1/configs/con-model", data=b"")
    t.ask("POST", "/v1/configs", {"name": "con-free", "labels": {"not a label": "!"}, "description": "ü <&>"})
    t.ask("GET", "/v1/configs/con-free")
    t.ask("DELETE", "/v1/configs/my-baetyl-thing")
    t.ask("PATCH", "/v1/configs/con-model")
    t.ask("POST", "/v1/configs/con-model", model("con-copy"))
    t.ask("GET", "/v1/nothing")


def lists(t: Transcript) -> None:
    for number in range(3):
        labels = {"ring": "canary" if number % 2 else "rest", "n": str(number)}
        t.ask("POST", "/v1/configs", {"name": f"lis-{number}", "labels": labels}, note=False)
        time.sleep(1.01 if number < 2 else 0)  # newest first, by the second
    for query in (
        "name=lis-", "name=lis-&pageNo=2&pageSize=2", "name=lis-&pageNo=9&pageSize=2", "name=lis-&pageSize=2",
        "name=lis-%25", "name=%25-1", "name=lis-&pageNo=-1&pageSize=1", "name=lis-&pageNo=0&pageSize=0",
        "selector=ring%3Dcanary&name=lis-", "selector=ring+in+(canary,rest),n!%3D1&name=lis-",
        "selector=!ring&name=lis-", "selector=n+notin+(1,2)&name=lis-", "selector=ring%3D%3Drest&name=lis-",
        "selector=ring&name=lis-", "selector=,,&name=lis-", "selector=ring%3Dcanary,&name=lis-",
        "selector=baetyl-cloud-system%3Dtrue&name=lis-", "limit=1&continue=x&name=lis-", "name=lis-&fieldSelector=z",
    ):  # fmt: skip
        t.ask("GET", f"/v1/configs?{query}")


def secrets(t: Transcript) -> None:
    t.ask("POST", "/v1/secrets", {"name": "sec-plain", "data": {"user": "u", "password": "p"}, "labels": {"x": "y"}})
    t.ask("GET", "/v1/secrets/sec-plain")
    t.ask("PUT", "/v1/secrets/sec-plain", {"data": {"user": "u", "password": "p"}, "description": ""})
    t.ask("PUT", "/v1/secrets/sec-plain", {"data": {"user": "u"}, "description": "d"})
    t.ask("GET", "/v1/secrets?name=sec-")
    login = {"name": "sec-reg", "address": "r.example", "username": "u", "password": "geheim"}
    t.ask("POST", "/v1/registries", login)
    t.ask("GET", "/v1/registries/sec-reg")
    t.ask("GET", "/v1/registries?name=sec-")
    t.ask("PUT", "/v1/registries/sec-reg", {**login, "address": "other", "description": "only this"})
    t.ask("PUT", "/v1/registries/sec-reg", {**login, "address": "other", "description": "only this"})
    t.ask("POST", "/v1/registries/sec-reg/refresh", {"password": "neu"})
    t.ask("GET", "/v1/secrets/sec-reg")  # shows the password
    for body in (
        {**login, "name": "sec-bad", "password": ""},
        login,
        {**login, "name": "sec-plain"},
        {"name": "sec-bad"},
    ):
        t.ask("POST", "/v1/registries", body)
    t.ask("POST", "/v1/secrets", {"name": "sec-bad"})
    t.ask("POST", "/v1/secrets", {"name": "sec-bad", "data": {"k": 1}})
    t.ask("POST", "/v1/secrets", {"name": "sec-large", "data": {"k": "x" * 50_000}})
    t.ask("PUT", "/v1/secrets/sec-none", {"data": {"k": "v"}})
    t.ask("PUT", "/v1/registries/sec-none", login)
    t.ask("GET", "/v1/registries/sec-none")
    t.ask("POST", "/v1/certificates", {"name": "sec-cert"})
    t.ask("GET", "/v1/certificates?name=sec-")
    t.ask("POST", "/v1/apps", app("sec-app", registries=[{"name": "sec-reg"}],
                                  volumes=[{"name": "plain", "secret": {"name": "sec-plain"}}]))  # fmt: skip
    t.ask("DELETE", "/v1/secrets/sec-plain")
    t.ask("DELETE", "/v1/registries/sec-reg")
    t.ask("GET", "/v1/registries/sec-reg/apps")
    t.ask("PUT", "/v1/apps/sec-app", app("sec-app", volumes=[{"name": "plain", "secret": {"name": "sec-plain"}}]))
    t.ask("DELETE", "/v1/registries/sec-reg")
    t.ask("DELETE", "/v1/registries/sec-reg")
    time.sleep(1.01)
    t.ask("PUT", "/v1/secrets/sec-plain", {"data": {"user": "w"}})
    t.ask("GET", "/v1/apps/sec-app")
    t.ask("DELETE", "/v1/apps/sec-app")
    t.ask("DELETE", "/v1/secrets/sec-plain")


def apps(t: Transcript) -> None:
    t.ask("POST", "/v1/configs", model("app-model"))
    t.ask(
        "POST", "/v1/configs", {"name": "app-script", "data": [{"key": "run.sh", "value": {"type": "kv", "value": ""}}]}
    )
    volumes = [{"name": "model", "config": {"name": "app-model", "version": "mine"}},
               {"name": "script", "config": {"name": "app-script"}},
               {"name": "host", "hostPath": {"path": "data"}}, {"name": "scratch", "emptyDir": {}}]  # fmt: skip
    full = app("app-full", volumes=volumes, labels={"team": "vision", "not valid!": "ü"}, description="d")
    full["services"][0] |= {
        "volumeMounts": [{"name": "model", "mountPath": "/m", "autoClean": True},
                         {"name": "script", "mountPath": "/s"}],
        "ports": [{"hostPort": 18082, "containerPort": 18082, "protocol": "TCP"}],
        "env": [{"name": "K", "value": "v"}], "resources": {"limits": {"cpu": "2"}, "requests": {}},
        "security": {"privileged": False}, "imagePullPolicy": "IfNotPresent", "command": [], "nonsense": {"x": 1},
    }  # fmt: skip
    t.ask("POST", "/v1/apps", full)
    read = t.ask("GET", "/v1/apps/app-full")
    t.ask("POST", "/v1/apps", full)
    t.ask("PUT", "/v1/apps/app-full", read)  # the same: no new version
    t.ask("PUT", "/v1/apps/app-full", {k: v for k, v in read.items() if k != "autoScaleCfg"})  # a new version
    probed = {**read, "services": [{**read["services"][0], "livenessProbe": {"exec": {"command": ["true"]}}}]}
    t.ask("PUT", "/v1/apps/app-full", probed)
    t.ask("PUT", "/v1/apps/app-full", probed)  # a new version each time
    started = {**read, "services": [{**read["services"][0], "startupProbe": {"exec": {"command": ["true"]}}}]}
    t.ask("PUT", "/v1/apps/app-full", read)
    t.ask("PUT", "/v1/apps/app-full", started)  # not noticed
    t.ask("GET", "/v1/apps/app-full")
    t.ask("PUT", "/v1/apps/app-full", {**read, "type": "function"})
    t.ask("PUT", "/v1/apps/app-full", {**read, "mode": "other", "description": "e"})
    t.ask("GET", "/v1/apps/app-full")
    t.ask("GET", "/v1/apps?name=app-")
    t.ask("GET", "/v1/configs/app-model/apps")
    t.ask("DELETE", "/v1/configs/app-model")
    t.ask("POST", "/v1/apps?base=app-full", app("app-clone", services=[]))
    t.ask("GET", "/v1/apps/app-clone")
    t.ask("POST", "/v1/apps?base=app-none", app("app-bad"))
    t.ask("POST", "/v1/apps?base=app-full", app("app-bad"))
    t.ask("DELETE", "/v1/apps/app-clone")
    t.ask("POST", "/v1/apps", {"name": "app-least"})
    t.ask("POST", "/v1/apps", {**app("app-nil"), "replica": 0, "workload": "daemonset", "hostNetwork": True,
                               "jobConfig": {"completions": 2}, "preserveUpdates": True, "nodeSelector": "a=b",
                               "autoScaleCfg": {"minReplicas": 1, "maxReplicas": 2, "metrics": []},
                               "initServices": [{"name": "first", "image": "i"}]})  # fmt: skip
    t.ask("GET", "/v1/apps/app-nil")
    service = full["services"][0]
    for bad in (
        app("a" * 56), app("app-bad", type="x"), app("app-bad", workload="x"),
        app("app-bad", services=[{"name": "web"}]),
        app("app-bad", services=[{"name": "a.b", "image": "i"}]), app("app-bad", services=[{"image": "i"}]),
        app("app-bad", mode="native"), app("app-bad", volumes=[{"name": "v", "config": {"name": "none"}}]),
        app("app-bad", volumes=[{"name": "v", "secret": {"name": "none"}}]),
        app("app-bad", registries=[{"name": "none"}]),
        app("app-bad", volumes=[volumes[0], volumes[0]]), app("app-bad", services=[service]),
        app("app-bad", services=[{"name": "web", "image": "i"}] * 2),
        app("app-bad", replica=2, services=[{"name": "web", "image": "i", "ports": service["ports"]}]),
        app("app-bad", services=[{"name": "web", "image": "i", "ports": service["ports"] * 2}]),
        app("app-bad", services=[{"name": "web", "image": "i", "ports": [{"serviceType": "NodePort"}]}]),
        app("app-bad", replica="1"), app("app-bad", selector=3), app("app-bad", selector="x" * 300),
        app("app-bad", cronStatus=1), app("app-bad", autoScaleCfg={"metrics": [{"resource": {"name": "cpu"}}]}),
    ):  # fmt: skip
        t.ask("POST", "/v1/apps", bad)
        t.ask("DELETE", "/v1/apps/app-bad", note=False)
    waiting = app("app-cron", selector="x=y", cronStatus=1, cronTime="2037-01-01T00:00:00Z")
    t.ask("POST", "/v1/apps", waiting)
    t.ask("GET", "/v1/apps/app-cron")
    t.ask("GET", "/v1/apps?name=app-cron")
    t.ask("PUT", "/v1/apps/app-cron", {**waiting, "description": "later"})
    t.ask("PUT", "/v1/apps/app-cron", {**waiting, "cronStatus": 2})
    t.ask("PUT", "/v1/apps/app-cron", {**waiting, "cronStatus": 0})
    t.ask("GET", "/v1/apps/app-cron")
    t.ask("PUT", "/v1/apps/app-cron", waiting)
    t.ask("DELETE", "/v1/apps/app-cron")
    t.ask("PUT", "/v1/apps/app-none", app("app-none"))
    t.ask("GET", "/v1/apps/app-none")
    t.ask("DELETE", "/v1/apps/app-none")
    t.ask("GET", "/v1/apps/app-full/configs")
    for name in ("app-full", "app-nil", "app-least"):
        t.ask("DELETE", f"/v1/apps/{name}")
    t.ask("DELETE", "/v1/configs/app-model")


def nodes(t: Transcript) -> None:
    t.ask(
        "POST",
        "/v1/nodes",
        {"name": "nod-one", "labels": {"ring": "canary"}, "description": "d", "annotations": {"a": "b"}},
    )
    t.ask("GET", "/v1/nodes/nod-one")
    t.ask("GET", "/v1/nodes/nod-one/stats")
    t.ask("POST", "/v1/nodes", {"name": "nod-one"})
    t.ask(
        "POST",
        "/v1/nodes",
        {"name": "nod-baetyl", "accelerator": "nvidia", "cluster": True, "sysApps": ["baetyl-rule"]},
    )
    t.ask("GET", "/v1/nodes/nod-baetyl")
    t.ask("PUT", "/v1/nodes/nod-baetyl", {"name": "x1", "labels": {}})
    t.ask("GET", "/v1/nodes/nod-baetyl")
    for bad in ({"name": "n_"}, {}, {"name": "nod-bad", "nodeMode": "x"}, {"name": "nod-bad", "labels": {"a b": "c"}},
                {"name": "nod-bad", "labels": {"a": "x" * 64}}, {"name": "nod-bad", "labels": {"a/b/c": ""}},
                {"name": "nod-bad", "sysApps": ["x"]}, {"name": "nod-bad", "nodeMode": "native", "cluster": True},
                {"name": "nod-bad", "labels": {"a": 1}}):  # fmt: skip
        t.ask("POST", "/v1/nodes", bad)
        t.ask("DELETE", "/v1/nodes/nod-bad", note=False)
    t.ask("PUT", "/v1/nodes/nod-none", {"name": "nod-none"})
    t.ask("GET", "/v1/nodes/nod-none")
    t.ask("DELETE", "/v1/nodes/nod-none")
    t.ask("PUT", "/v1/nodes?batch", {"names": ["nod-one", "nod-none"]})
    t.ask("PUT", "/v1/nodes?batch", {"names": ["n"] * 21})
    t.ask("PUT", "/v1/nodes", {"names": []})
    t.ask("GET", "/v1/nodes/nod-one/deploys")
    t.ask("GET", "/v1/nodes/nod-one/functions")
    t.ask("GET", "/v1/nodes/nod-one/properties")
    t.ask("PUT", "/v1/nodes/nod-one/properties", {"state": {"desire": {"site": "a", "line": "1"}}})
    t.ask("PUT", "/v1/nodes/nod-one/properties", {"state": {"desire": {"site": "b"}}})
    t.ask("GET", "/v1/nodes/nod-one/properties")
    t.ask("PUT", "/v1/nodes/nod-one/properties", {"state": {"desire": {"site": 1}}})
    t.ask("GET", "/v1/nodes/nod-none/properties")
    t.ask("PUT", "/v1/nodes/nod-one/mode", {"mode": "x"})
    t.ask("PUT", "/v1/nodes/nod-one/mode", {"mode": "local"})
    t.ask("GET", "/v1/nodes/nod-one")
    t.sync("nod-one", "report", {"apps": []})
    t.ask("PUT", "/v1/nodes/nod-one/mode", {"mode": "cloud"})
    time.sleep(1.1)  # lists look at times of reports that are brought up to date once in a second, by a report
    t.sync("nod-one", "report", {"apps": []})
    t.ask("GET", "/v1/nodes?name=nod-&selector=ring%3Dcanary")
    t.ask("GET", "/v1/nodes?name=nod-&ready=online")
    t.ask("GET", "/v1/nodes?name=nod-&ready=uninstall")
    t.ask("GET", "/v1/nodes?name=nod-&ready=offline")
    t.ask("GET", "/v1/nodes?name=nod-&cluster=single&createSort=asc")
    t.ask("GET", "/v1/nodes?name=nod-&ready=x")
    t.ask("GET", "/v1/nodes/nod-one/core/configs")
    t.ask("PUT", "/v1/nodes/nod-one/core/configs", {"version": "v2.4.3", "frequency": 0, "apiport": 30050})
    t.ask("GET", "/v1/nodes/nod-one/core/versions")
    t.ask("GET", "/v1/quotas")
    t.ask("DELETE", "/v1/nodes/nod-baetyl")
    t.ask("DELETE", "/v1/nodes/nod-one")
    t.ask("GET", "/v1/configs?selector=baetyl-cloud-system%3Dtrue,baetyl-node-name%3Dnod-one")
    t.sync("nod-one", "report", {"apps": []})


def deployment(t: Transcript) -> None:
    t.ask("POST", "/v1/nodes", {"name": "dep-node", "labels": {"dep": "r1"}})
    t.ask("POST", "/v1/configs", model("dep-model"))
    volumes = [{"name": "model", "config": {"name": "dep-model"}}]
    t.ask("POST", "/v1/apps", app("dep-one", selector="dep=r1", volumes=volumes))
    t.ask("POST", "/v1/apps", app("dep-two", selector="dep in (r2)", volumes=volumes))
    t.ask("POST", "/v1/apps", app("dep-nowhere", selector="", volumes=[]))
    t.ask("POST", "/v1/apps", app("dep-broken", selector="!!", volumes=[]))
    t.ask("GET", "/v1/nodes/dep-node")
    t.ask("GET", "/v1/nodes/dep-node/apps")
    t.sync("dep-node", "report", {"apps": [], "sysapps": []})
    t.ask("GET", "/v1/nodes/dep-node/stats")
    t.sync("dep-node", "desire", {"infos": [{"kind": "application", "name": "dep-one", "version": "x"},
                                            {"kind": "configuration", "name": "dep-model"}]})  # fmt: skip
    for bad in ([{"kind": "app", "name": "none"}], [{"kind": "thing", "name": "x"}], []):
        t.sync("dep-node", "desire", {"infos": bad})
    desire = t.ask("GET", "/v1/nodes/dep-node")["desire"]
    t.sync("dep-node", "report", {"apps": desire["apps"], "sysapps": desire["sysapps"]})  # in step: nothing to do
    t.sync("dep-node", "report", {"apps": desire["apps"], "sysapps": desire["sysapps"][::-1]})  # order counts
    t.ask("PUT", "/v1/nodes/dep-node", {"labels": {"dep": "r2"}})
    t.sync("dep-node", "report", {"apps": desire["apps"], "sysapps": desire["sysapps"]})
    time.sleep(1.01)
    t.ask("PUT", "/v1/configs/dep-model", model("dep-model", md5="cd" * 16))
    t.ask("GET", "/v1/apps/dep-one")
    t.ask("GET", "/v1/nodes/dep-node")
    t.ask("PUT", "/v1/apps/dep-two", app("dep-two", selector="dep=r3", volumes=volumes))
    t.ask("GET", "/v1/nodes/dep-node")
    t.ask("PUT", "/v1/apps/dep-two", app("dep-two", selector="dep=r2", volumes=volumes))
    t.ask("PUT", "/v1/nodes/dep-node/properties", {"state": {"desire": {"site": "a"}}})
    t.sync("dep-node", "report", {"apps": [], "sysapps": desire["sysapps"], "nodeprops": {"site": "b", "x": "y"}})
    t.ask("GET", "/v1/nodes/dep-node/properties")
    broker = [entry for entry in desire["sysapps"] if "broker" in entry["name"]]
    t.sync("dep-node", "report", {"sysapps": broker, "sysappstats": []}, source="baetyl-init")
    t.ask("GET", "/v1/nodes/dep-node")
    for name in ("dep-one", "dep-two", "dep-nowhere", "dep-broken"):
        t.ask("DELETE", f"/v1/apps/{name}")
    t.ask("GET", "/v1/nodes/dep-node")
    t.ask("DELETE", "/v1/nodes/dep-node")
    t.sync("dep-none", "report", {"apps": []})
    t.sync("", "report", {"apps": []})


def reports(t: Transcript) -> None:
    t.ask("POST", "/v1/nodes", {"name": "rep-node"})
    instance = {
        "name": "i", "appName": "a", "status": "Running", "nodeName": "h", "createTime": "2024-01-02T03:04:05Z",
        "usage": {"cpu": "500m", "memory": "1Ki"}, "extension": {"any": [1]}, "unknown": 1,
        "containers": [{"name": "c", "state": "Running", "reason": "ProbePassed", "extra": 1}],
        "initContainers": [{"name": "v", "state": "Terminated", "reason": "Completed"}],
    }  # fmt: skip
    stats = {"name": "a", "version": "1", "status": "Running", "cause": "", "deployType": "deployment"}
    host = {"hostname": "h", "address": "10.0.0.5", "arch": "amd64", "os": "linux", "role": "master", "x": 1}
    numbers = {
        "ready": True, "usage": {"cpu": "0.31", "memory": "812345678"}, "capacity": {"cpu": "4", "memory": "4Gi"},
        "extension": {"diskUsed": 5, "diskTotal": 10.5, "diskPercent": 0.00001, "usedMemory": 1, "percent": 0.5,
                      "netBytesSent": 12345678901, "cloudedge": {"fetched": 1}},
    }  # fmt: skip
    report = {
        "time": "1999-01-01T00:00:00Z", "modeinfo": "v1", "core": {"binVersion": "v2", "x": 1}, "unknown": {"a": 1},
        "node": {"h": host}, "nodestats": {"h": numbers, "empty": {}}, "apps": [{"name": "a", "version": "1"}],
        "appstats": [{**stats, "instances": {"i": instance}}, {"name": "b", "cause": "it broke"}],
    }  # fmt: skip
    t.sync("rep-node", "report", report)
    t.ask("GET", "/v1/nodes/rep-node")
    t.ask("GET", "/v1/nodes?name=rep-")
    t.sync("rep-node", "report", {"apps": [], "node": {"h": {**host, "machineID": "m", "containerRuntime": "c"}}})
    t.ask("GET", "/v1/nodes/rep-node/stats")
    t.sync("rep-node", "report", {"nodestats": {"h": {"usage": {"cpu": "much"}}}})
    t.ask("GET", "/v1/nodes/rep-node/stats")
    t.ask("GET", "/v1/nodes?name=rep-")  # one such report, and no node can be listed
    t.sync("rep-node", "report", {"appstats": [{"name": 1}]})
    t.ask("GET", "/v1/nodes/rep-node/stats")
    t.sync("rep-node", "report", [])
    t.sync("rep-node", "report", {})
    t.ask("GET", "/v1/nodes/rep-node/stats")
    t.ask("DELETE", "/v1/nodes/rep-node")


SCENES = (configs, lists, secrets, apps, nodes, deployment, reports)
