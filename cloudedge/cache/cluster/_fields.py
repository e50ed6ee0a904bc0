"""Strict reading of manifests: an unknown field is an error, since the server would drop it silently."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from cloudedge.findings import Finding, error
from cloudedge.kube import Kind

__all__ = ["SECRET_REF", "Fields", "check_object"]

Fields = Mapping[str, Any]
"""Allowed fields: for each name a type, the fields below it, or a list with the fields of its items."""

_WRITTEN_BY_THE_SERVER = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
_OBJECT: Fields = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str, "namespace": str, "labels": dict, "annotations": dict}
    | dict.fromkeys(_WRITTEN_BY_THE_SERVER, object),
    "status": object,
}
"""The fields of every object besides its spec; `kubectl get -o yaml` prints all of them."""
SECRET_REF: Fields = {"name": str, "namespace": str}


def check_object(manifest: Any, kind: Kind, spec: Fields) -> Iterator[Finding]:
    """Find an object's unknown fields and values of the wrong type.

    Args:
        manifest: The object; null values count as absent.
        kind: The kind it should be.
        spec: The allowed fields of its spec.
    """
    if isinstance(manifest, Mapping):
        for name, wanted in (("apiVersion", kind.api_version), ("kind", kind.kind)):
            if manifest.get(name) != wanted:
                yield error("kind", name, f"{manifest.get(name)!r} is not {wanted!r}.")
    yield from _check_fields(manifest, {**_OBJECT, "spec": spec}, "")


def _check_fields(value: Any, fields: Fields, where: str) -> Iterator[Finding]:
    if not isinstance(value, Mapping):
        yield error(
            "field", where or "the file", f"{value!r} is not a mapping.", f"Its fields are {', '.join(fields)}."
        )
        return
    for name, below in value.items():
        place = f"{where}.{name}" if where else str(name)
        known = fields.get(name)
        if known is None:
            near = difflib.get_close_matches(str(name), fields, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"The fields are {', '.join(fields)}."
            yield error("field", place, "This field does not exist.", hint)
        elif below is not None:
            yield from _check(below, known, place)


def _check(value: Any, known: Any, where: str) -> Iterator[Finding]:
    if isinstance(known, Mapping):
        yield from _check_fields(value, known, where)
    elif isinstance(known, list):
        if isinstance(value, list):
            for number, item in enumerate(value):
                yield from _check(item, known[0], f"{where}[{number}]")
        else:
            yield error("field", where, f"{value!r} is not a list.")
    elif known is not object and type(value) is not known:
        yield error("field", where, f"{value!r} is not of type {known.__name__}.")
