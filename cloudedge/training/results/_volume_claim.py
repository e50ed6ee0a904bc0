"""Copies of files in a volume claim, read through a pod that mounts it and verified by their digests.

The pod's image needs only `find`, `sha256sum` and `dd`. By default it is the job's own, which its nodes have already.
File names from the pod are untrusted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from cloudedge.bundle import check_member_path
from cloudedge.errors import InputError, IntegrityError, NotFound, Rejected
from cloudedge.kube import Cluster, Kind, Ran
from cloudedge.training.manifest import Manifest, section

__all__ = ["copy_from_claim"]

_MOUNT_PATH = "/cloudedge-output"
_CHUNK_MB = 16
"""Size of one read: the pod's answer is held in memory."""
_START_S, _READ_S, _LIFE_S = 300.0, 600.0, 3600
_MOST_FILES = 100_000


def copy_from_claim(cluster: Cluster, namespace: str, claim: str, path: str, target: Path, *, image: str) -> None:
    """Copy a folder of a volume claim.

    Args:
        cluster: The cluster of the claim.
        namespace: Its namespace.
        claim: Its name.
        path: The folder in it; all of it if empty.
        target: A folder that does not exist yet.
        image: The image of the copying pod.

    Raises:
        NotFound: the claim does not exist, or there is nothing at that path.
        IntegrityError: a file changed while it was copied.
    """
    if cluster.get(Kind.PVC, claim, namespace) is None:
        raise NotFound(f"the volume claim {claim} does not exist in {namespace}")
    folder = f"{_MOUNT_PATH}/{check_member_path(path.strip('/'))}" if path.strip("/") else _MOUNT_PATH
    target.mkdir(parents=True)
    with _pod(cluster, namespace, claim, image) as pod:
        reader = _Reader(cluster, namespace, pod)
        for digest, name in reader.listing(folder):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            reader.copy(f"{folder}/{name}", file, digest)


@dataclass(frozen=True)
class _Reader:
    """Reads files through a pod that mounts them."""

    cluster: Cluster
    namespace: str
    pod: str

    def listing(self, folder: str) -> list[tuple[str, str]]:
        """List the files of a folder: digests, and names relative to it."""
        ran = self._run("find", folder, "-type", "f", "-exec", "sha256sum", "{}", "+")
        lines = ran.stdout.decode("utf-8", errors="surrogateescape").splitlines()
        if ran.code or not lines:
            reason = ran.stderr.decode(errors="replace").strip()[:300] or "it has no files"
            raise NotFound(f"cannot read {folder.removeprefix(_MOUNT_PATH) or '/'} of the claim: {reason}")
        if len(lines) > _MOST_FILES:
            raise InputError(f"{len(lines)} files: no model has more than {_MOST_FILES}")
        found = []
        for line in lines:
            digest, separator, name = line.partition("  ")
            if not separator or not name.startswith(f"{folder}/"):
                raise InputError(f"the claim holds a file whose name cannot be copied: {line[:200]!r}")
            found.append((digest, check_member_path(name.removeprefix(f"{folder}/"))))
        return found

    def copy(self, source: str, target: Path, digest: str) -> None:
        """Copy one file in chunks and verify its digest."""
        hashed = hashlib.sha256()
        with target.open("wb") as file:
            for number in count():
                skip = number * _CHUNK_MB
                ran = self._run("dd", f"if={source}", "bs=1048576", f"skip={skip}", f"count={_CHUNK_MB}")
                if ran.code:
                    raise NotFound(f"cannot read {source}: {ran.stderr.decode(errors='replace').strip()[:300]}")
                hashed.update(ran.stdout)
                file.write(ran.stdout)
                if len(ran.stdout) < _CHUNK_MB << 20:
                    break
        if hashed.hexdigest() != digest:
            later = "Wait until the job has ended, then fetch again."
            raise IntegrityError(f"{source} changed while it was copied", hint=later)

    def _run(self, *command: str) -> Ran:
        return self.cluster.run(self.pod, command, namespace=self.namespace, timeout_s=_READ_S)


@contextmanager
def _pod(cluster: Cluster, namespace: str, claim: str, image: str) -> Iterator[str]:
    name = f"cloudedge-fetch-{secrets.token_hex(4)}"
    try:
        # The creation may succeed though its answer is lost: the pod is deleted either way.
        cluster.create(_manifest(name, namespace, claim, image))
        cluster.wait(
            Kind.POD,
            name,
            _is_running,
            timeout_s=_START_S,
            what=f"starting a pod that reads the claim {claim}",
            namespace=namespace,
        )
        yield name
    finally:
        cluster.delete(Kind.POD, name, namespace=namespace)


def _is_running(pod: Manifest | None) -> bool:
    phase = section(pod or {}, "status").get("phase")
    if phase in {"Succeeded", "Failed"}:
        raise Rejected(
            "the copying pod ended unexpectedly", hint="Name an image that has sleep, find, sha256sum and dd."
        )
    return phase == "Running"


def _manifest(name: str, namespace: str, claim: str, image: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "cloudedge"},
            "annotations": {"sidecar.istio.io/inject": "false"},
        },
        "spec": {
            # If this process is killed before it deletes the pod, the pod ends by itself.
            "activeDeadlineSeconds": _LIFE_S,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "fetch",
                    "image": image,
                    "command": ["sleep", str(_LIFE_S)],
                    "volumeMounts": [{"name": "output", "mountPath": _MOUNT_PATH, "readOnly": True}],
                }
            ],
            "volumes": [{"name": "output", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
        },
    }
