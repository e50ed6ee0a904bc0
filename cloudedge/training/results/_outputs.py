"""Outputs of a job: fetch the model from its location, and pack it as a bundle with its lineage."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cloudedge.bundle import Bundle, Lineage, check_member_path, extract_tar, published
from cloudedge.bundle import split as split_model
from cloudedge.config import HubConfig, load
from cloudedge.errors import InputError, NotFound, Unavailable
from cloudedge.training.manifest import OUTPUT, Manifest, first_container, roles, section

if TYPE_CHECKING:
    from cloudedge.kube import Cluster

__all__ = ["Outputs"]

METRICS = "metrics.json"
"""A file a job may write beside its model: names and numbers for the bundle's lineage."""
_LARGEST_METRICS = 1 << 20
_HTTP_S = 60.0
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Outputs:
    """The model a job made.

    Args:
        url: Its location: ``pvc://claim/path``, ``http://...`` (a tar archive or a file), ``s3://bucket/prefix``,
            ``bos://bucket/prefix``, or a local folder.
        lineage: The job that made it, its dataset and its code.
    """

    url: str
    lineage: Lineage
    namespace: str = ""
    image: str = ""
    cluster: Cluster | None = field(default=None, repr=False)

    @classmethod
    def of_cluster(cls, job: Manifest, cluster: Cluster) -> Outputs:
        """Return the outputs of a job on a cluster, as its annotations describe them."""
        metadata = section(job, "metadata")
        images = {name: str(first_container(role).get("image") or "") for name, _, role in roles(job)}
        image = images.get("worker") or images.get("trainer") or next(iter(images.values()), "")
        namespace = str(metadata.get("namespace") or "")
        return cls(
            str(section(metadata, "annotations").get(OUTPUT) or ""),
            lineage_of(job, f"{namespace}/{metadata.get('name')}@{metadata.get('uid')}", image),
            namespace,
            image,
            cluster,
        )

    def fetch(self, folder: Path, *, image: str = "") -> Path:
        """Copy the model to a new local folder, which appears complete or not at all.

        Args:
            folder: The new folder.
            image: For volume claims: an image with find, sha256sum and dd, instead of the job's own.

        Raises:
            NotFound: the job names no location, or there is nothing at it.
            Conflict: the folder exists.
        """
        if not self.url:
            raise NotFound(
                "the job does not name the location of its model",
                hint=f"Submit it with `--output`, or annotate it with `{OUTPUT}=pvc://CLAIM/PATH`.",
            )
        scheme = self.url.partition("://")[0] if "://" in self.url else "file"
        with published(folder, f"fetching {self.url}") as temporary:
            if scheme == "pvc":
                self._from_claim(temporary, image or self.image)
            elif scheme in {"http", "https"}:
                _from_http(self.url, temporary)
            elif scheme in {"s3", "bos"}:
                _from_store(self.url, temporary)
            elif scheme == "file":
                shutil.copytree(_existing(self.url.removeprefix("file://")), temporary)
            else:
                raise InputError(f"{self.url}: wanted pvc://, http://, https://, s3://, bos:// or a folder")
        return folder

    def pack(self, name: str, *, folder: Path | None = None, split: bool = False, **options: Any) -> Bundle:
        """Fetch the model and pack it as a bundle that names this job.

        Args:
            name: The bundle's name.
            folder: Keep the fetched model in this folder; a temporary one if left out.
            split: Split it first: its embeddings become tables, and the bundle knows its inputs and outputs.
            options: Further arguments of `Bundle.pack`: sparse, signature, hub, version ...
        """
        with tempfile.TemporaryDirectory(prefix="cloudedge-") as scratch:
            fetched = self.fetch(folder or Path(scratch) / "model")
            lineage = options.pop("lineage", None) or self.lineage.model_copy(
                update={"metrics": {**self.lineage.metrics, **read_metrics(fetched)}}
            )
            if split:
                pieces = split_model(fetched, Path(scratch) / "pieces")
                fetched, framework = pieces.folder, pieces.report.framework_version
                from_split = {"sparse": pieces.tables, "signature": pieces.signature, "probes": pieces.probes}
                options = {**from_split, "framework_version": framework, **options}
            # The bundle must not link to files in a temporary folder.
            is_temporary = split or folder is None
            return Bundle.pack(fetched, name=name, lineage=lineage, copy=is_temporary, **options)

    def _from_claim(self, target: Path, image: str) -> None:
        from cloudedge.training.results._volume_claim import copy_from_claim  # noqa: PLC0415 - the client is an extra

        if self.cluster is None:
            raise InputError(f"{self.url} is on a cluster, but this run is local")
        claim, _, path = self.url.removeprefix("pvc://").partition("/")
        copy_from_claim(self.cluster, self.namespace, claim, path, target, image=image)


def lineage_of(job: Manifest, run: str, image: str) -> Lineage:
    """Return the lineage of a job's model; annotations of the job take precedence over derived values."""
    annotations = section(job, "metadata", "annotations")
    samples = section(job, "spec", "sampleSetRef").get("name")
    dataset = annotations.get("cloudedge/dataset") or (f"sampleset/{samples}" if samples else "")
    return Lineage(job=run, dataset=str(dataset), code=str(annotations.get("cloudedge/code") or image))


def read_metrics(folder: Path) -> dict[str, float]:
    """Read the metrics the job wrote, if any.

    Raises:
        InputError: the file is not names and numbers.
    """
    file = folder / METRICS
    if not file.is_file():
        return {}
    if file.stat().st_size > _LARGEST_METRICS:
        raise InputError(f"{METRICS} of the model has more than {_LARGEST_METRICS} bytes")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{METRICS} of the model is not names and numbers: {error}") from error


def _existing(folder: str) -> Path:
    if not Path(folder).is_dir():
        raise NotFound(f"the job wrote no folder {folder}")
    return Path(folder)


def _from_http(url: str, target: Path) -> None:
    import requests  # noqa: PLC0415 - slow to import

    target.mkdir()
    name = Path(urlsplit(url).path).name or "model"
    shown = urlsplit(url)._replace(query="", netloc=urlsplit(url).hostname or "").geturl()
    try:
        with requests.get(url, stream=True, timeout=_HTTP_S) as answer, tempfile.TemporaryFile() as kept:
            if not answer.ok:
                wrong = NotFound if answer.status_code in {404, 410} else Unavailable
                raise wrong(f"fetching {shown}: {answer.status_code} {answer.reason}")
            for block in answer.iter_content(_BLOCK):
                kept.write(block)
            kept.seek(0)
            if name.endswith((".tar", ".tar.gz", ".tgz")):
                extract_tar(kept, target, shown)
            else:
                with (target / check_member_path(name)).open("wb") as file:
                    shutil.copyfileobj(kept, file, _BLOCK)
    except requests.RequestException as error:
        raise Unavailable(f"fetching {shown}: {type(error).__name__}") from error


def _from_store(url: str, target: Path) -> None:
    from cloudedge.hub import open_store  # noqa: PLC0415 - boto3 is an extra

    bucket = "/".join(url.split("/")[:3])
    known = [hub for hub in load().hubs.values() if hub.url == bucket or hub.url.startswith(f"{bucket}/")]
    config = known[0].model_copy(update={"url": url}) if known else HubConfig(url=url)
    store = open_store(config)
    target.mkdir()
    count = 0
    for item in store.list(""):
        file = target / check_member_path(item.key)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            for block in store.get(item.key):
                out.write(block)
        count += 1
    if not count:
        raise NotFound(f"{url} holds no files")
