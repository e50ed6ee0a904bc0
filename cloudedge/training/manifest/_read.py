"""Manifests from YAML: find the job among the documents, and refuse unsupported kinds of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from cloudedge.errors import InputError
from cloudedge.training.manifest._paddlejob import PADDLE_JOB
from cloudedge.training.manifest._pods import section
from cloudedge.training.manifest._values import Manifest
from cloudedge.training.manifest._volcano import VOLCANO_JOB

__all__ = ["is_job", "read_manifests", "require_job"]

_LARGEST = 4 * 1024 * 1024
_MOST_VALUES = 200_000
_DEEPEST = 100


def read_manifests(source: str | Path) -> list[Manifest]:
    """Read the documents of a YAML file or text.

    Raises:
        InputError: it cannot be read, is not YAML, or has a document that is not a Kubernetes object.
    """
    what = str(source) if isinstance(source, Path) else "the manifest"
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {what}: {error}", path=what) from error
    if len(text) > _LARGEST:
        raise InputError(f"{what} is larger than {_LARGEST} bytes, more than any API server accepts", path=what)
    try:
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{what} is not YAML: {error}", path=what) from error
    for each in documents:
        if not isinstance(each, dict) or not isinstance(each.get("kind"), str) or "apiVersion" not in each:
            raise InputError(
                f"{what} holds a document without kind and apiVersion, which is not a Kubernetes object", path=what
            )
    counter = count()
    return [_plain(each, what, counter, 0) for each in documents]


def _plain(value: Any, what: str, counter: Iterator[int], depth: int) -> Any:
    """Copy a document without sharing: YAML aliases put one object in several places, or expand beyond all memory."""
    if next(counter) > _MOST_VALUES or depth > _DEEPEST:
        raise InputError(f"{what} is larger than any job: over {_MOST_VALUES} values, or nested over {_DEEPEST} deep")
    if isinstance(value, dict):
        return {str(key): _plain(each, what, counter, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, what, counter, depth + 1) for each in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def is_job(manifest: Mapping[str, Any]) -> bool:
    """Return whether a manifest claims to be a training job, supported or not."""
    group = str(manifest.get("apiVersion")).partition("/")[0]
    return manifest.get("kind") == "PaddleJob" or (manifest.get("kind") == "Job" and group == "batch.volcano.sh")


def require_job(manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that is not a job cloudedge can submit.

    Raises:
        InputError: it is an unsupported kind of PaddleJob, or no job at all.
    """
    version, kind = str(manifest.get("apiVersion")), manifest.get("kind")
    if kind == "PaddleJob" and version.startswith("kubeflow.org/"):
        raise InputError(
            f"this is the PaddleJob of Kubeflow's training operator ({version}), a different kind from "
            f"paddle-operator's ({PADDLE_JOB})",
            hint="Rewrite spec.paddleReplicaSpecs as spec.ps and spec.worker, or submit it with Kubeflow's own tools.",
        )
    if kind == "PaddleJob" and version != PADDLE_JOB:
        raise InputError(f"PaddleJob is {PADDLE_JOB}, not {version}", hint=f"Write apiVersion: {PADDLE_JOB}.")
    if kind == "Job" and version.startswith("batch.volcano.sh/") and version != VOLCANO_JOB:
        raise InputError(f"Volcano's Job is {VOLCANO_JOB}, not {version}")
    if not is_job(manifest):
        raise InputError(
            f"{kind} of {version} is not a training job",
            hint=f"Use a PaddleJob of {PADDLE_JOB}, or a Job of {VOLCANO_JOB}.",
        )
    spec = manifest.get("spec")
    if not isinstance(spec, dict):
        raise InputError("the job has no spec")
    if kind == "PaddleJob" and ("tasks" in spec or "mode" in spec):
        raise InputError(
            "this PaddleJob has spec.tasks or spec.mode: the form of an experimental branch (heter) that no released "
            "controller knows; a cluster would drop both fields and run nothing",
            hint="Write spec.ps, spec.worker and spec.heter, each with replicas and a template.",
        )
    if not isinstance(section(manifest, "metadata").get("name"), str):
        raise InputError("the job has no metadata.name")
