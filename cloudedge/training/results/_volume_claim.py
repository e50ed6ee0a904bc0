"""Files of a volume claim, copied to this machine: through a pod that mounts it, checked by their digests.

Only `find`, `sha256sum` and `dd` are needed in the pod's image, which by default is the job's own: its nodes have it.
Names that come from the pod are not trusted.
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

_AT = "/cloudedge-output"
_CHUNK = 16
"""Megabytes of one read: what a pod answers is held in memory."""
_START_S, _READ_S, _LIFE_S = 300.0, 600.0, 3600
_MOST_FILES = 100_000


def copy_from_claim(cluster: Cluster, namespace: str, claim: str, path: str, target: Path, *, image: str) -> None:
    """Copy a folder of a volume claim.

    Args:
        cluster: Where the claim is.
        namespace: Its namespace.
        claim: Its name.
        path: The folder in it; all of it if empty.
        target: A folder that is not there yet.
        image: What the copying pod runs.

    Raises:
        NotFound: there is no such claim, or nothing at that path.
        IntegrityError: a file changed while it was copied.
    """
    if cluster.get(Kind.PVC, claim, namespace) is None:
        raise NotFound(f"there is no volume claim {claim} in {namespace}")
    folder = f"{_AT}/{check_member_path(path.strip('/'))}" if path.strip("/") else _AT
    target.mkdir(parents=True)
    with _pod(cluster, namespace, claim, image) as pod:
        reader = _Reader(cluster, namespace, pod)
        for digest, name in reader.listing(folder):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            reader.copy(f"{folder}/{name}", file, digest)


@dataclass(frozen=True)
class _Reader:
    """Reads files through a pod that has them."""

    cluster: Cluster
    namespace: str
    pod: str

    def listing(self, folder: str) -> list[tuple[str, str]]:
        """List the files of a folder: their digests, and their names in it."""
        ran = self._run("find", folder, "-type", "f", "-exec", "sha256sum", "{}", "+")
        lines = ran.stdout.decode("utf-8", errors="surrogateescape").splitlines()
        if ran.code or not lines:
            said = ran.stderr.decode(errors="replace").strip()[:300] or "there are no files"
            raise NotFound(f"nothing can be read from {folder.removeprefix(_AT) or '/'} of the claim: {said}")
        if len(lines) > _MOST_FILES:
            raise InputError(f"{len(lines)} files: no model has more than {_MOST_FILES}")
        found = []
        for line in lines:
            digest, separator, name = line.partition("  ")
            if not separator or not name.startswith(f"{folder}/"):
                raise InputError(f"a file whose name cannot be copied: {line[:200]!r}")
            found.append((digest, check_member_path(name.removeprefix(f"{folder}/"))))
        return found

    def copy(self, source: str, target: Path, digest: str) -> None:
        """Copy one file, piece by piece."""
        hashed = hashlib.sha256()
        with target.open("wb") as file:
            for number in count():
                skip = number * _CHUNK
                ran = self._run("dd", f"if={source}", "bs=1048576", f"skip={skip}", f"count={_CHUNK}")
                if ran.code:
                    raise NotFound(f"cannot read {source}: {ran.stderr.decode(errors='replace').strip()[:300]}")
                hashed.update(ran.stdout)
                file.write(ran.stdout)
                if len(ran.stdout) < _CHUNK << 20:
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
        # An answer that is lost is no pod that is not there: it is deleted either way.
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
        raise Rejected("the copying pod ended by itself", hint="Name an image that has sleep, find, sha256sum and dd.")
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
            # Should we be killed before it is deleted, it ends by itself.
            "activeDeadlineSeconds": _LIFE_S,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "fetch",
                    "image": image,
                    "command": ["sleep", str(_LIFE_S)],
                    "volumeMounts": [{"name": "output", "mountPath": _AT, "readOnly": True}],
                }
            ],
            "volumes": [{"name": "output", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
        },
    }
