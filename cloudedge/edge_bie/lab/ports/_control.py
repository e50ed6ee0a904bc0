"""The lab's own controls under ``/_lab/``: read counters, speed up time, and inject faults."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from cloudedge.edge_bie.lab.ports._faults import Chance, Faults
from cloudedge.edge_bie.lab.ports._requests import JSON, Request
from cloudedge.errors import InputError
from cloudedge.http1 import HttpAnswer

if TYPE_CHECKING:
    from cloudedge.edge_bie.lab.ports._request_pipeline import Front

__all__ = ["Control"]

_FASTEST = 10_000.0


class Control:
    """Answers requests below ``/_lab/``. They never suffer faults."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def __call__(self, request: Request) -> HttpAnswer:
        """Answer one request."""
        try:
            return HttpAnswer(200, orjson.dumps(self._answer(request)), JSON)
        except InputError as error:
            return HttpAnswer(400, orjson.dumps({"error": error.message}), JSON)
        except LookupError:
            why = f"no {request.method} {request.path} in the lab"
            return HttpAnswer(404, orjson.dumps({"error": why}), JSON)

    def _answer(self, request: Request) -> Any:
        front = self._front
        match request.method, request.path.removeprefix("/_lab/"):
            case "GET", "requests":
                return {"counts": dict(front.counts), "requests": list(front.requests)}
            case "DELETE", "requests":
                front.counts.clear()
                front.requests.clear()
                return {}
            case "GET", "traffic":
                files = front.files
                return {"clients": files.by_client, "objects": files.by_object, "requests": files.requests}
            case "DELETE", "traffic":
                front.files.reset()
                return {}
            case "GET" | "PUT" | "DELETE" as method, "faults":
                return self._faults(method, request)
            case "GET" | "PUT" as method, "settings":
                return self._settings(method, request)
        raise LookupError

    def _faults(self, method: str, request: Request) -> Any:
        front = self._front
        if method != "GET":
            front.chance = Chance(Faults.from_json(_json(request))) if method == "PUT" else None
            front.files.chance = front.chance
        if front.chance is None:
            return {"on": False}
        return {"on": True, **asdict(front.chance.faults), "happened": front.chance.counts}

    def _settings(self, method: str, request: Request) -> Any:
        world = self._front.world
        if method == "PUT":
            wanted = _json(request)
            if not isinstance(wanted, dict) or not wanted.keys() <= {"rate", "nextVersion"}:
                raise InputError("settings are an object of rate and nextVersion")
            rate, version = wanted.get("rate", world.rate), wanted.get("nextVersion", world.next_version)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= _FASTEST:
                raise InputError(f"rate is a number above 0 and at most {_FASTEST:.0f}, not {rate!r}")
            if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
                raise InputError(f"nextVersion is a number from 1, or null, not {version!r}")
            world.rate, world.next_version = float(rate), version
        return {"rate": world.rate, "nextVersion": world.next_version, "namespace": world.namespace}


def _json(request: Request) -> Any:
    try:
        return orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise InputError(f"the body is not JSON: {error}") from None
