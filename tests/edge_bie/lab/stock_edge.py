"""An edge node as BAETYL 2.5 is: how it asks, downloads, unpacks and keeps, without running anything.

It is here to show what a change costs on nodes that run the stock software, and what that software does with files:

- an object is kept in ``object/CONFIG/VERSION/KEY``, and fetched unless a file is there whose MD5 fits (or, without an
  MD5, any file);
- a fetch is one GET from the first byte on; whatever goes wrong, the whole version's folder is removed;
- an archive is unpacked next to itself, over what is there, and only right after it was fetched;
- everything the control plane answers is a Go template: ``{{`` that is not one of the node's own names ends the cycle;
- all desired apps are fetched in one request, so one that cannot be had stops all.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import requests
from requests.adapters import HTTPAdapter

from cloudedge.clock import SystemClock, rfc3339
from cloudedge.errors import InputError, Unavailable
from cloudedge.io import digest_file

__all__ = ["StockEdge"]

DONE = ("Terminated", "Completed")
_PREFIX = "_object_"
_TIMEOUT_S = 30.0
_RETRY_S = 1.0
_CHUNK = 1 << 16
_TEMPLATE = re.compile(r"\{\{\s*\.(\w+)\s*\}\}")


class StockEdge:
    """One node.

    Args:
        sync_url: Where it reports.
        name: As the control plane knows it.
        lib: Its ``/var/lib/baetyl``.
        address: The loopback address it comes from; stock nodes do not say who they are when they download, so this is
            how the lab tells them apart.
        namespace: Of the control plane.
    """

    def __init__(
        self, sync_url: str, name: str, lib: Path, *, address: str = "127.0.0.1", namespace: str = "baetyl-cloud"
    ) -> None:
        self.lib = lib
        self.desire: dict[str, Any] = {}
        self.running: dict[str, dict[str, Any]] = {}
        """The apps as applied, by name."""
        self.causes: dict[str, str] = {}
        """Why an app could not be applied, by name."""
        self.init_state = DONE
        """What Kubernetes says of init containers; nothing is run here."""
        self._url = sync_url
        self._address = address
        self._identity = {"common-name": f"{namespace}.{name}"}
        self._names = {"BAETYL_NODE_NAME": name, "BAETYL_HOST_PATH_LIB": str(lib)}
        self._http = requests.Session()
        adapter = HTTPAdapter()
        adapter.init_poolmanager(4, 4, source_address=(address, 0))
        self._http.mount("http://", adapter)

    def cycle(self) -> None:
        """Report, learn what to run, and try to run it: what the stock software does every few seconds.

        Raises:
            Unavailable: the control plane refuses, or says something that is not a template.
        """
        patch = self._ask("report", self._report())
        if patch:
            self.desire.update(patch)
        wanted = {app["name"]: app["version"] for app in self.desire.get("apps") or ()}
        if wanted == {name: app["version"] for name, app in self.running.items()}:
            return
        self._fetch("application", wanted)
        for name in list(self.running):
            if name not in wanted:
                del self.running[name]
        for name, version in wanted.items():
            if self.running.get(name, {}).get("version") != version:
                try:
                    self.running[name] = self._apply(name, version)
                    self.causes.pop(name, None)
                except (OSError, InputError, Unavailable, zipfile.BadZipFile, tarfile.TarError) as error:
                    self.causes[name] = str(error)

    def mounts(self, app: str) -> dict[str, Path]:
        """Return where each mount path of an app's services comes from on this node."""
        applied = self.running[app]
        volumes = {volume["name"]: volume for volume in applied["volumes"]}
        found = {}
        for service in applied["services"]:
            for mount in service.get("volumeMounts", ()):
                volume = volumes[mount["name"]]
                if volume.get("config"):
                    found[mount["mountPath"]] = self._folder(volume["config"])
                elif volume.get("hostPath"):
                    found[mount["mountPath"]] = self._host_path(volume["hostPath"]["path"])
        return found

    def _host_path(self, path: str) -> Path:
        """Return a folder of the host: a relative one is kept below the node's own, and made when it is not there."""
        folder = Path(path) if path.startswith("/") else self.lib / "host" / path
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _folder(self, config: Mapping[str, str]) -> Path:
        objects = self.lib / "object" / config["name"] / config["version"]
        return objects if objects.is_dir() else self.lib / "configmap" / config["name"] / config["version"]

    def _report(self) -> dict[str, Any]:
        order = {app["name"]: number for number, app in enumerate(self.desire.get("apps") or ())}
        apps = [{"name": name, "version": app["version"]} for name, app in self.running.items()]
        stats = [{**app, "status": "Running", "instances": self._instances(app["name"])} for app in apps]
        for each in stats:  # an app runs when its pods do
            each["status"] = next(iter(each["instances"].values()))["status"]
        return {
            "node": {"host": {"hostname": "host", "address": self._address, "arch": "amd64", "os": "linux"}},
            "apps": sorted(apps, key=lambda app: order.get(app["name"], len(order))),
            "sysapps": self.desire.get("sysapps") or [],
            # A cause does not say whose it is: the entry of an app that was never applied has no name.
            "appstats": [*stats, *({"cause": cause} for cause in self.causes.values())],
        }

    def _instances(self, app: str) -> dict[str, Any]:
        """Say of each container that it runs: a stock node does as soon as the process was started."""
        containers = [{"name": each["name"], "state": "Running"} for each in self.running[app]["services"]]
        name, at = f"{app}-0", self.running[app]["at"]
        tried = [
            {"name": each["name"], **dict(zip(("state", "reason"), self.init_state, strict=True))}
            for each in self.running[app]["init"]
        ]
        pod = {"name": name, "appName": app, "status": "Running", "nodeName": "host", "createTime": at}
        if tried and self.init_state != DONE:
            pod["status"] = "Pending"
            containers = [{**each, "state": "Waiting", "reason": "PodInitializing"} for each in containers]
        return {name: {**pod, "containers": containers, **({"initContainers": tried} if tried else {})}}

    def _ask(self, what: str, body: Any) -> Any:
        headers = {**self._identity, "kind": what, "source": "baetyl-core"}
        try:
            answer = self._http.post(f"{self._url}/v1/sync/{what}", json=body, headers=headers, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            raise Unavailable(f"the control plane does not answer: {error}") from error
        if not answer.ok:
            raise Unavailable(f"the control plane refuses to {what}: {answer.status_code} {answer.text[:200]}")
        return orjson.loads(self._filled(answer.text))

    def _filled(self, text: str) -> str:
        """Run the node's own names through what was answered."""
        filled = _TEMPLATE.sub(lambda match: self._names.get(match[1], match[0]), text)
        if "{{" in filled:
            raise Unavailable("what the control plane answered is not a template of this node", text=filled[:200])
        return filled

    def _fetch(self, kind: str, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
        if not wanted:
            return []
        infos = [{"kind": kind, "name": name, "version": version} for name, version in wanted.items()]
        return [value["value"] for value in self._ask("desire", {"infos": infos})["values"]]

    def _apply(self, name: str, version: str) -> dict[str, Any]:
        app = self._fetch("application", {name: version})[0]
        volumes = app.get("volumes", [])
        configs = {v["config"]["name"]: v["config"]["version"] for v in volumes if "config" in v}
        secrets = {v["secret"]["name"]: v["secret"]["version"] for v in volumes if "secret" in v}
        for config in self._fetch("configuration", configs):
            self._keep(config)
            if config["version"] != configs[config["name"]]:
                raise Unavailable(f"failed to get config name: ({config['name']}) version: ({configs[config['name']]})")
        self._fetch("secret", secrets)
        at = rfc3339(SystemClock().now())
        parts = {"services": app.get("services", []), "init": app.get("initServices", [])}
        return {"volumes": volumes, **parts, "version": version, "at": at}

    def _keep(self, config: Mapping[str, Any]) -> None:
        """Download what a config refers to, or write down what it holds if it refers to nothing."""
        data = config.get("data", {})
        objects = {key.removeprefix(_PREFIX): value for key, value in data.items() if key.startswith(_PREFIX)}
        if not objects:
            folder = self.lib / "configmap" / config["name"] / config["version"]
            folder.mkdir(parents=True, exist_ok=True)
            for key, value in data.items():
                (folder / key).write_text(value, encoding="utf-8")
            return
        folder = self.lib / "object" / config["name"] / config["version"]
        for key, value in objects.items():
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._download(orjson.loads(value), folder, folder / key)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def _download(self, reference: Mapping[str, Any], folder: Path, file: Path) -> None:
        md5 = reference.get("md5", "")
        if file.exists() and (not md5 or _md5(file) == md5):
            return
        headers = {"x-bce-security-token": reference["token"]} if reference.get("token") else {}
        try:
            answer = self._http.get(reference["url"], headers=headers, stream=True, timeout=_TIMEOUT_S)
        except requests.RequestException:
            time.sleep(_RETRY_S)
            answer = self._http.get(reference["url"], headers=headers, stream=True, timeout=_TIMEOUT_S)
        with answer:
            if answer.status_code != requests.codes.ok:
                raise Unavailable(f"failed to download config object ({file.name}): [{answer.status_code}]")
            with file.open("wb") as target:
                for chunk in answer.iter_content(_CHUNK):
                    target.write(chunk)
        file.chmod(0o755)
        if md5 and _md5(file) != md5:
            raise Unavailable(f"MD5 of config object ({file.name}) invalid")
        _unpack(reference.get("unpack", ""), file, folder)


def _md5(file: Path) -> str:
    return digest_file(file, sha256=False, md5=True).md5


def _unpack(how: str, file: Path, folder: Path) -> None:
    if how == "zip":
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
    elif how in {"tar", "tgz"}:
        with tarfile.open(file, "r:gz" if how == "tgz" else "r:") as archive:
            archive.extractall(folder, filter="data")
    elif how:
        raise InputError(f"failed to unpack file ({file.name}): '{how}' not supported")
