"""`cloudedge bie` as a stranger uses it: real processes, exit codes, what goes where, and a node that reports."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from cloudedge.cli import main
from cloudedge.edge_bie.client import Bie
from cloudedge.edge_bie.lab import NAMESPACE, Lab
from tests.edge_bie.sync.samples import example


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path / "lab") as running:
        yield running


@pytest.fixture
def folder(tmp_path, lab, monkeypatch):
    objects = {"store": str(lab.objects), "public_url": lab.objects_url}
    settings = {"clouds": {"lab": {"url": lab.admin_url, "objects": objects}}}
    (tmp_path / "cloudedge.yaml").write_text(json.dumps(settings))
    monkeypatch.setenv("CLOUDEDGE_CONFIG", str(tmp_path / "cloudedge.yaml"))
    (example(tmp_path / "f") / "dog.jpg").write_bytes(b"a picture")
    return tmp_path / "f"


@dataclass
class Done:
    stdout: str
    stderr: str


@pytest.fixture
def cloudedge(capsys, monkeypatch):
    """Run the command line in this process, all of it: starting Python two dozen times takes a minute."""

    def run(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["cloudedge", "bie", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        done = Done(*capsys.readouterr())
        assert (left.value.code or 0) == code, f"{left.value.code}: {done.stdout}\n{done.stderr}"
        return done

    return run


def process(*words, code=0, start=("-m", "cloudedge", "bie")):
    done = subprocess.run(
        [sys.executable, *start, *map(str, words)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parts
def test_from_nothing_to_in_sync_and_back(cloudedge, folder, lab, tmp_path):
    assert "does not exist" in cloudedge("plan", folder, code=1).stderr
    cloudedge("node", "paddle-serving-test", "--label", "ring=canary")
    planned = process("plan", folder, code=2)
    assert planned.stdout.splitlines()[0] == "+ create config paddle-yolov3-model: it does not exist"
    assert json.loads(cloudedge("plan", folder, "--json", code=2).stdout)["in_sync"] is False
    assert "create app paddle-serving" in cloudedge("apply", folder, "--dry-run", code=2).stdout
    with Bie.from_url(lab.admin_url) as bie:
        assert not bie.configs()
    assert "4 writes" in cloudedge("apply", folder).stderr
    assert "in sync" in process("plan", folder, start=("-m", "cloudedge.edge_bie.sync")).stderr
    assert json.loads(cloudedge("apply", folder, "--json").stdout)["number"] is None
    (folder / "scripts/run.sh").write_text("echo two\n")
    changed = cloudedge("plan", folder, code=2)
    assert "~ update config paddle-yolov3-run-script: it differs" in changed.stdout
    cloudedge("apply", folder)
    cloudedge("drift", folder)
    assert "1 would change" in cloudedge("rollback", folder, "--dry-run", code=2).stderr
    assert "state 1" in cloudedge("rollback", folder).stderr
    with Bie.from_url(lab.admin_url) as bie:
        script = bie.config("paddle-yolov3-run-script")
        assert "web_service.py" in script.items["run.sh"].value
        bie.set_labels("paddle-serving-test", {"serves": "nothing"})
    changed = cloudedge("drift", folder, code=2).stdout.splitlines()
    assert changed == ["~ node paddle-serving-test: its labels differ", "    serves: 'yolov3' -> 'nothing'"]
    states = json.loads(cloudedge("history", folder, "--json").stdout)
    assert [state["number"] for state in states] == [3, 2, 1]
    cloudedge("export", tmp_path / "exported")
    cloudedge("plan", tmp_path / "exported")
    assert "name: seed" in (tmp_path / "exported/set.yaml").read_text(), "or nobody could apply it once it is edited"
    assert "kind: app" in cloudedge("export", tmp_path / "exported", "--dry-run").stdout
    cloudedge("export", tmp_path / "exported", code=1)
    (audit,) = tmp_path.glob("home/bie/*/audit.jsonl")
    writes = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {write["outcome"] for write in writes} == {"done"}
    # Two changes of a config within one second leave its app behind; that is noticed and repaired by a write more.
    assert len([write for write in writes if write["verb"] != "repin"]) == 7


@pytest.mark.parts
def test_waiting_for_a_node_and_asking_it(cloudedge, folder, lab):
    cloudedge("node", "paddle-serving-test")
    cloudedge("apply", folder)
    late = cloudedge("wait", folder, "--timeout", 1, "--poll", 0.2, "--json", code=1)
    (arrival,) = json.loads(late.stdout)
    assert arrival["verdict"] == {"state": "waiting", "reason": "the node never connected"}
    with Bie.from_url(lab.admin_url) as bie, Answering() as port:
        version = bie.app("paddle-serving").version
        documents = folder / "apps.yaml"
        documents.write_text(documents.read_text().replace("{address}:18082", f"{{address}}:{port}"))
        stop = threading.Event()
        reporting = threading.Thread(target=report, args=(lab.sync_url, version, stop))
        reporting.start()
        try:
            waited = cloudedge("wait", folder, "--timeout", 60, "--poll", 0.2)
            assert "paddle-serving\tpaddle-serving-test\tdeployed" in waited.stdout
            verified = cloudedge("verify", folder)
            assert verified.stdout.count("\tok") == 2, verified.stdout
            (folder / "model.zip").write_bytes(b"not what was uploaded")
            assert "answers 404" in cloudedge("verify", folder, code=1).stdout
            documents.write_text(documents.read_text().replace("err_no: 0", "err_no: 1"))
            wrong = cloudedge("verify", folder, "--no-files", code=1)
            assert "err_no is 0, not 1" in wrong.stdout
        finally:
            stop.set()
            reporting.join()


MISUSE = {
    "no command": (),
    "an unknown command": ("frobnicate",),
    "an unknown option": ("plan", "folder", "--nope"),
    "nothing to plan": ("plan",),
    "not a number": ("wait", "folder", "--timeout", "soon"),
}


@pytest.mark.rules
@pytest.mark.parametrize("words", MISUSE.values(), ids=MISUSE)
def test_a_wrong_word_is_a_failure_and_no_pending_change(cloudedge, words):
    cloudedge(*words, code=1)


@pytest.mark.rules
def test_which_cloud(cloudedge, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("kind: config\nname: xx\n")
    assert "no cloud was given" in cloudedge("plan", "a.yaml", code=1).stderr
    assert "the cloud 'prod' is not configured" in cloudedge("plan", "a.yaml", "--cloud", "prod", code=1).stderr


class Answering:
    """A detector that always finds the same box."""

    def __enter__(self):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                good = self.path == "/yolov3/prediction" and asked == {"key": ["image"], "value": ["YSBwaWN0dXJl"]}
                body = json.dumps({"err_no": 0 if good else 5, "key": ["bbox_result"], "value": ["[]"]}).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self._server.server_port

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def report(sync_url, version, stop):
    """Play a node that runs what it was told to."""
    running = {"name": "main", "state": "Running"}
    instance = {"name": "i", "status": "Running", "createTime": "2099-01-01T00:00:00Z", "containers": [running]}
    stats = {"name": "paddle-serving", "version": version, "status": "Running", "instances": {"i": instance}}
    body = {
        "node": {"host": {"address": "127.0.0.1", "arch": "amd64"}},
        "apps": [{"name": "paddle-serving", "version": version}],
        "appstats": [stats],
    }
    headers = {"common-name": f"{NAMESPACE}.paddle-serving-test", "kind": "report", "source": "baetyl-core"}
    while not stop.wait(0.3):
        requests.post(f"{sync_url}/v1/sync/report", json=body, headers=headers, timeout=5).raise_for_status()
