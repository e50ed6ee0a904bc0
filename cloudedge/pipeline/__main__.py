"""The launcher: the program in a step's container, or in its place on this machine.

python3 -m cloudedge.pipeline STEP --input value ...
python3 -m cloudedge.pipeline upload --file F --endpoint E --model-name M --model-version V     in modelhub's Job
python3 -m cloudedge.pipeline convert --inference DIR --output DIR                              in training's Job
python3 -m cloudedge.pipeline claim --pvc-name N --pvc-name-suffix S --output FILE              for CreatePVC, locally
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudedge.errors import CloudEdgeError, InputError
from cloudedge.pipeline._environment import LOCAL, RESULTS
from cloudedge.pipeline._inputs import StepInputs, read_arguments, read_pairs

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Run one step; return the exit code."""
    try:
        command = _COMMANDS.get(words[0]) if words else None
        if command is not None:
            result = command(_Given(read_pairs(words)))
        else:
            inputs = read_arguments(words)
            result = {"step": inputs.step, "name": inputs.name, "action": inputs.action, **_run_step(inputs)}
            _append_result(result)
    except CloudEdgeError as error:
        _log(f"error: {error.message}" + (f"\n  {error.hint}" if error.hint else ""))
        return error.exit_code
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def _run_step(inputs: StepInputs) -> dict[str, Any]:
    if here := os.environ.get(LOCAL):
        from cloudedge.pipeline._local import LocalSteps  # noqa: PLC0415 - imported only where needed

        return LocalSteps(Path(here), tell=_log).run(inputs)
    from cloudedge.kube import Cluster  # noqa: PLC0415
    from cloudedge.pipeline._cluster import ClusterSteps  # noqa: PLC0415

    with Cluster.connect(namespace=inputs.namespace) as cluster:
        return ClusterSteps(cluster, _log).run(inputs)


def _upload(given: Mapping[str, str]) -> dict[str, Any]:
    from cloudedge.pipeline._modelhub import ModelHub  # noqa: PLC0415

    hub = ModelHub.at(given["endpoint"], prepare=True)
    return vars(hub.push(Path(given["file"]), given["model-name"], given["model-version"]))


def _convert(given: Mapping[str, str]) -> dict[str, Any]:
    from cloudedge.pipeline._convert import convert  # noqa: PLC0415

    convert(Path(given["inference"]), Path(given["output"]))
    return {"converted": given["output"]}


def _claim(given: Mapping[str, str]) -> dict[str, Any]:
    from cloudedge.pipeline._local import LocalSteps  # noqa: PLC0415

    name = given["pvc-name"] if given["pvc-name"] not in {"", "null"} else f"local{given['pvc-name-suffix']}"
    LocalSteps(Path(os.environ[LOCAL])).claim(name)
    output = Path(given["output"])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(name, encoding="utf-8")
    return {"claim": name}


_COMMANDS: Mapping[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {
    "upload": _upload,
    "convert": _convert,
    "claim": _claim,
}


class _Given(dict[str, str]):
    def __missing__(self, key: str) -> str:
        raise InputError(f"--{key} is missing")


def _append_result(result: Mapping[str, Any]) -> None:
    if file := os.environ.get(RESULTS):
        with Path(file).open("a", encoding="utf-8") as out:
            out.write(json.dumps(result) + "\n")


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
