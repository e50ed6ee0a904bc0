"""Compiled pipelines: read them, list their steps, adapt them to kfp's local runner. Runs nothing."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cloudedge.errors import InputError
from cloudedge.pipeline._components import LAUNCHER, importing_kfp
from cloudedge.pipeline._inputs import STEPS, StepInputs, read_values

__all__ = ["Compiled", "PipelineStep", "compile_file", "for_this_machine", "steps_of"]

_MAKES_CLAIM = "argostub/createpvc"
"""kfp-kubernetes' name for the executor of CreatePVC; no such image ever runs."""
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\[''?([^'\]]+)''?\]\}\}")
_MARK = "kfp.dsl.executor_main"


@dataclass(frozen=True)
class Compiled:
    """A compiled pipeline."""

    name: str
    spec: Mapping[str, Any]
    """The intermediate representation."""
    platform: Mapping[str, Any] | None = None
    """The additions of kfp-kubernetes, if any."""

    def text(self) -> str:
        """Return the file that Kubeflow accepts."""
        documents = [self.spec, *([self.platform] if self.platform else [])]
        return "---\n".join(yaml.safe_dump(each, sort_keys=True) for each in documents)

    @property
    def parameters(self) -> dict[str, Any]:
        """The pipeline's own inputs with their defaults, None without one."""
        given = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        return {name: each.get("defaultValue") for name, each in given.items()}

    def typed(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Convert parameter values given as text to their types.

        Raises:
            InputError: a value is not of its type, or the parameter does not exist.
        """
        given = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        found: dict[str, Any] = {}
        for name, text in texts.items():
            if name not in given:
                raise InputError(
                    f"{self.name} has no parameter {name!r}", hint=f"Its parameters: {', '.join(given) or 'none'}."
                )
            kind = given[name].get("parameterType", "STRING")
            try:
                found[name] = text if kind == "STRING" else json.loads(text.lower() if kind == "BOOLEAN" else text)
            except ValueError:
                raise InputError(f"--set {name}={text}: not a value of type {kind}") from None
        return found


@dataclass(frozen=True)
class PipelineStep:
    """One task of a pipeline that the launcher runs."""

    task: str
    inputs: StepInputs


def compile_file(file: Path, function: str = "") -> Compiled:
    """Compile a Python file with a ``@dsl.pipeline``, or read a compiled file.

    Args:
        file: Python, or YAML.
        function: The name of the pipeline, if the file has several.

    Raises:
        InputError: the file holds no pipeline, or several.
        ConfigError: kfp is not installed.
    """
    if not file.is_file():
        raise InputError(f"the file {file} does not exist")
    if file.suffix in {".yaml", ".yml"}:
        return _read(file.read_text(encoding="utf-8"), str(file))
    with importing_kfp():
        from kfp import compiler  # noqa: PLC0415 - an extra, and slow to import
    with _imported(file) as module:
        chosen = _pipeline(module, file, function)
        with tempfile.TemporaryDirectory(prefix="cloudedge-") as scratch:
            target = Path(scratch, "pipeline.yaml")
            compiler.Compiler().compile(chosen, str(target))
            return _read(target.read_text(encoding="utf-8"), str(file))


def steps_of(compiled: Compiled, arguments: Mapping[str, Any] | None = None) -> list[PipelineStep]:
    """List the steps that the launcher runs for a pipeline, in a possible order.

    Args:
        compiled: The pipeline.
        arguments: Values of its parameters; the others have their defaults.

    Raises:
        InputError: a step's input is not valid, or a parameter has no value.
    """
    given = dict(arguments or {})
    unknown = sorted(set(given) - set(compiled.parameters))
    if unknown:
        names = ", ".join(compiled.parameters) or "none"
        raise InputError(f"{compiled.name} has no parameter {unknown[0]!r}", hint=f"Its parameters: {names}.")
    return list(_walk(compiled.spec, compiled.spec["root"]["dag"], compiled.parameters | given))


def for_this_machine(compiled: Compiled) -> str:
    """Return the same graph for kfp's local runner, which runs only commands of Python functions.

    It recognises those by the name of their executor, so that name is put where the shell takes it for a comment. A
    step that makes a volume claim makes a folder instead. Other containers stay as they are, and kfp refuses them.
    """
    spec = copy.deepcopy(dict(compiled.spec))
    for executor in spec["deploymentSpec"]["executors"].values():
        container = executor.get("container") or {}
        words = container.get("command") or []
        if container.get("image") == _MAKES_CLAIM:
            words = [*LAUNCHER, "claim"]
            container["args"] = [
                *("--pvc-name", "{{$.inputs.parameters['pvc_name']}}"),
                *("--pvc-name-suffix", "{{$.inputs.parameters['pvc_name_suffix']}}"),
                *("--output", "{{$.outputs.parameters['name'].output_file}}"),
            ]
        elif tuple(words[: len(LAUNCHER)]) != LAUNCHER:
            continue
        container["command"] = ["sh", "-c", f'exec "$0" "$@" # {_MARK}', *words]
        container["image"] = "python: none, this machine"  # kfp warns of images without "python"
    return yaml.safe_dump(spec)


def _walk(spec: Mapping[str, Any], dag: Mapping[str, Any], scope: Mapping[str, Any]) -> Iterator[PipelineStep]:
    produced: dict[tuple[str, str], Any] = {}
    for name, task in _in_order(dag["tasks"]):
        component = spec["components"][task["componentRef"]["name"]]
        given = (task.get("inputs") or {}).get("parameters") or {}
        values = {key: _value(each, scope, produced) for key, each in given.items()}
        values = {key: _filled(value, values) for key, value in values.items()}
        if "dag" in component:
            defaults = (component.get("inputDefinitions") or {}).get("parameters") or {}
            known = {key: each.get("defaultValue") for key, each in defaults.items()}
            yield from _walk(spec, component["dag"], known | values)
            continue
        container = spec["deploymentSpec"]["executors"][component["executorLabel"]].get("container") or {}
        if container.get("image") == _MAKES_CLAIM:
            produced[name, "name"] = values.get("pvc_name") or f"run{values.get('pvc_name_suffix') or ''}"
        words = container.get("command") or []
        if tuple(words[:-1]) == LAUNCHER and words[-1] in STEPS:
            kind = STEPS[words[-1]]
            yield PipelineStep(
                name, read_values(kind, {key: each for key, each in values.items() if key in _names(component)})
            )


def _names(component: Mapping[str, Any]) -> set[str]:
    return set((component.get("inputDefinitions") or {}).get("parameters") or {})


def _in_order(tasks: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield tasks after those they wait for; independent ones by name."""
    left = dict(sorted(tasks.items()))
    done: set[str] = set()
    while left:
        ready = [name for name, task in left.items() if _waits_for(task) <= done]
        if not ready:
            raise InputError(f"the tasks {', '.join(left)} wait for each other")
        for name in ready:
            yield name, left.pop(name)
        done |= set(ready)


def _waits_for(task: Mapping[str, Any]) -> set[str]:
    given = (task.get("inputs") or {}).get("parameters") or {}
    produced = (each.get("taskOutputParameter") or {} for each in given.values())
    return {*task.get("dependentTasks", ()), *(each["producerTask"] for each in produced if each)}


def _value(source: Mapping[str, Any], scope: Mapping[str, Any], produced: Mapping[tuple[str, str], Any]) -> Any:
    if "componentInputParameter" in source:
        name = source["componentInputParameter"]
        if scope.get(name) is None:
            raise InputError(f"the parameter {name!r} has no value", hint=f"Set it with `--set {name}=...`.")
        return scope[name]
    if "taskOutputParameter" in source:
        task, key = source["taskOutputParameter"]["producerTask"], source["taskOutputParameter"]["outputParameterKey"]
        return produced.get((task, key), f"{task}-{key}".lower())
    return (source.get("runtimeValue") or {}).get("constant")


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    return _PARAMETER.sub(lambda found: _text(values.get(found[1])), value)


def _text(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return value if isinstance(value, str) else json.dumps(int(value) if whole else value)


def _read(text: str, what: str) -> Compiled:
    try:
        documents = [each for each in yaml.safe_load_all(text) if each]
    except yaml.YAMLError as error:
        raise InputError(f"{what} is not YAML: {error}") from error
    spec = next((each for each in documents if isinstance(each, dict) and "pipelineInfo" in each), None)
    if spec is None or "dag" not in (spec.get("root") or {}):
        raise InputError(
            f"{what} is not a compiled pipeline", hint="Compile it with kfp 2: `cloudedge pipeline render FILE.py`."
        )
    platform = next((each for each in documents if "platforms" in each), None)
    return Compiled(spec["pipelineInfo"]["name"], spec, platform)


@contextlib.contextmanager
def _imported(file: Path) -> Iterator[Any]:
    """Import a file as Python would run it: modules beside it can be imported."""
    found = importlib.util.spec_from_file_location(f"_pipeline_{file.stem}", file)
    if found is None or found.loader is None:
        raise InputError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.path.insert(0, str(file.absolute().parent))
    try:
        try:
            found.loader.exec_module(module)
        except Exception as error:
            late = "from __future__ import annotations" in file.read_text(encoding="utf-8")
            hint = "Remove `from __future__ import annotations`: kfp needs types, not strings." if late else ""
            raise InputError(f"{file} does not load: {type(error).__name__}: {error}", hint=hint) from error
        yield module
    finally:
        sys.path.remove(str(file.absolute().parent))


def _pipeline(module: Any, file: Path, function: str) -> Any:
    from kfp.dsl.graph_component import GraphComponent  # noqa: PLC0415

    found = {name: each for name, each in vars(module).items() if isinstance(each, GraphComponent)}
    if function:
        found = {name: each for name, each in found.items() if name == function}
    if len(found) != 1:
        problem = f"{file} has {len(found)} pipelines" + (f" called {function}" if function else "")
        names = ", ".join(name for name, each in vars(module).items() if isinstance(each, GraphComponent))
        hint = f"Choose one with `--function NAME`: {names}." if names else "Mark one with `@dsl.pipeline`."
        raise InputError(problem, hint=hint)
    return next(iter(found.values()))
