"""An API server of our own, killed and started again under a watch and a wait."""

import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
import urllib3
import yaml

from cloudedge.errors import CloudEdgeError
from cloudedge.kube import Cluster, Kind
from tests.kube.fault_proxy import settled
from tests.kube.real_cluster import definition

pytestmark = pytest.mark.parts


def program(name):
    """Find a program of Kubernetes': on the path, or where the test cluster has its own."""
    beside = Path(os.environ.get("CLOUDEDGE_TEST_KUBECONFIG", "/nowhere")).parent.parent / "bin" / name
    found = shutil.which(name) or (str(beside) if beside.exists() else None)
    return found or pytest.skip(f"there is no {name} here")


class Api:
    """etcd and kube-apiserver, and nothing else."""

    def __init__(self, folder):
        self.folder = folder
        self.etcd_url, self.peer_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.port = free_port()
        self.api = None
        keys = ["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"]
        subprocess.run(keys, check=True, capture_output=True)
        (folder / "tokens.csv").write_text("a-token-for-tests,admin,admin,system:masters\n")
        self.etcd = self._run(
            "etcd",
            *("--data-dir", str(folder / "etcd"), "--advertise-client-urls", self.etcd_url),
            *("--listen-client-urls", self.etcd_url, "--listen-peer-urls", self.peer_url),
        )

    def start(self):
        self.api = self._run(
            "kube-apiserver",
            *(f"--etcd-servers={self.etcd_url}", f"--secure-port={self.port}", "--bind-address=127.0.0.1"),
            *(f"--cert-dir={self.folder / 'certs'}", "--authorization-mode=RBAC", "--token-auth-file=tokens.csv"),
            *(f"--service-account-{key}=sa.key" for key in ("key-file", "signing-key-file")),
            *("--service-account-issuer=https://lab", "--service-cluster-ip-range=10.97.0.0/16"),
            "--disable-admission-plugins=ServiceAccount",
        )

    def kill(self):
        self.api.send_signal(signal.SIGKILL)
        self.api.wait()

    def stop(self):
        for process in filter(None, (self.api, self.etcd)):
            process.kill()
            process.wait()

    def is_ready(self):
        try:
            headers = {"Authorization": "Bearer a-token-for-tests"}
            url = f"https://127.0.0.1:{self.port}/readyz"
            with urllib3.PoolManager(cert_reqs="CERT_NONE", retries=False) as pool:
                return pool.request("GET", url, headers=headers, timeout=2.0).status == 200
        except (urllib3.exceptions.HTTPError, OSError):
            return False

    def kubeconfig(self):
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "a-token-for-tests"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (self.folder / "config").write_text(yaml.safe_dump(config))
        return self.folder / "config"

    def _run(self, name, *options):
        command = [program(name), *options]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture
def api(tmp_path):
    program("kube-apiserver")
    program("etcd")
    found = Api(tmp_path)
    found.start()
    try:
        settled(found.is_ready, within_s=120)
        yield found
    finally:
        found.stop()


def test_a_restart_goes_unnoticed(api):
    """A watch, a wait and an apply that are under way when the server is killed all come to their end."""
    with Cluster.connect(kubeconfig=api.kubeconfig()) as cluster:
        # The other flavour of PaddleJob, which forgets the sample set.
        cluster.apply(definition("paddlejobs.batch.paddlepaddle.org.operator-0.3.5"))
        settled(lambda: cluster.capabilities(again=True).has(Kind.PADDLE_JOB))
        assert cluster.capabilities().paddle_flavour == "operator"
        assert cluster.capabilities().sample_set_ref is False
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"n": "1"}})
        seen, waited = [], []

        def watch():
            for change in cluster.watch(Kind.CONFIG_MAP, name="a", timeout_s=120):
                seen.append((change.type, change.object["data"]["n"]))
                if seen[-1][1] == "2":
                    return

        def wait():
            wanted = {"n": "2"}
            found = cluster.wait(
                Kind.CONFIG_MAP, "a", lambda now: now and now["data"] == wanted, timeout_s=120, what="waiting"
            )
            waited.append(found["data"])

        threads = [threading.Thread(target=each, daemon=True) for each in (watch, wait)]
        for thread in threads:
            thread.start()
        settled(lambda: seen == [("ADDED", "1")])
        api.kill()
        with pytest.raises(CloudEdgeError) as caught:
            cluster.get(Kind.CONFIG_MAP, "a")
        assert caught.value.retry_helps
        api.start()
        settled(api.is_ready, within_s=120)
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"n": "2"}})
        for thread in threads:
            thread.join(60)
        assert seen == [("ADDED", "1"), ("MODIFIED", "2")]
        assert waited == [{"n": "2"}]
