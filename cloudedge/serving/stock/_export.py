"""Export of a bundle to a directory that a stock Paddle Serving 0.9 can run.

`plan_export` decides and refuses; `export` writes. A bundle that a stock server cannot run is refused here, with the
reason, and not when the server starts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloudedge.bundle import Bundle, Lookup, Signature, Variable, find_program, published
from cloudedge.errors import InputError
from cloudedge.io import sync_file
from cloudedge.serving import conf
from cloudedge.serving.stock._web_service import web_service

__all__ = ["TARGETS", "ExportPlan", "export", "plan_export"]

TARGETS = ("paddle-serving-0.9", "paddle-serving-0.9-pipeline")
_NEWEST_FOR_STOCK = (3, 1, 1)
_SERVER, _CLIENT, _WORK = "serving_server", "serving_client", "workdir"
_OWN_RUNTIME = "Serve it with `cloudedge serve`, which answers the same requests."


@dataclass(frozen=True)
class ExportPlan:
    """The files to write: texts as bytes, dense files as paths in the hub."""

    target: str
    files: Mapping[str, bytes | Path]
    notes: tuple[str, ...] = ()

    def server_files(self) -> dict[str, bytes | Path]:
        """Return the files of the model's own directory, without the stamp that servers watch."""
        return {
            path.removeprefix(f"{_SERVER}/"): source
            for path, source in self.files.items()
            if path.startswith(f"{_SERVER}/") and not path.endswith("/fluid_time_file")
        }


def plan_export(
    bundle: Bundle,
    target: str = "paddle-serving-0.9",
    *,
    port: int = 9393,
    http_port: int = 18080,
    cube_conf: str = "",
    variants: Sequence[conf.ClientVariant] = (),
) -> ExportPlan:
    """Plan the files of an export.

    Args:
        bundle: The bundle to export.
        target: The C++ server (and the Pipeline service, where it can), or the Pipeline service alone.
        port: Port of the C++ server.
        http_port: Port of the Pipeline service; its gRPC port is the one below.
        cube_conf: The text of a cube.conf, for a bundle with tables; a template to fill in if left out.
        variants: The servers that clients of the C++ server share their calls among; this machine's alone if left out.

    Raises:
        InputError: The target cannot run this bundle; gives the reason.
        ConfigError: The variants are invalid.
    """
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}", hint=f"Known are {', '.join(TARGETS)}.")
    program, parameters = _program_of(bundle)
    is_pir = program.endswith(".json")
    for_cpp = target == "paddle-serving-0.9"
    if not bundle.signature.feed or not bundle.signature.fetch:
        raise InputError(f"{bundle!r} declares no inputs and outputs: stock servers need them")
    if for_cpp:
        _check_cpp(bundle, program)
    signature, ids = bundle.signature, list[str]()
    if not for_cpp:
        signature = _without_aliases(signature)
    elif bundle.sparse:
        signature, ids = _lookup_op_signature(bundle)
    described = conf.model_config(signature, lod=ids)
    text, binary = conf.write_text(described).encode(), conf.write_binary(described)
    files: dict[str, bytes | Path] = {
        f"{_SERVER}/model{'.json' if is_pir else '.pdmodel'}": bundle.dense[program],
        f"{_SERVER}/model.pdiparams": bundle.dense[parameters],
        f"{_SERVER}/serving_server_conf.prototxt": text,
        f"{_SERVER}/serving_server_conf.stream.prototxt": binary,
        f"{_SERVER}/fluid_time_file": b"",
        f"{_CLIENT}/serving_client_conf.prototxt": text,
        f"{_CLIENT}/serving_client_conf.stream.prototxt": binary,
    }
    notes = []
    if for_cpp:
        files |= _cpp_files(bundle, described, port, cube_conf)
        clients = conf.sdk_config(variants or [conf.ClientVariant("default", (f"127.0.0.1:{port}",), 100)])
        files[f"{_CLIENT}/predictors.prototxt"] = conf.write_text(clients).encode()
        if bundle.sparse and not cube_conf:
            notes.append(f"{_WORK}/cube.conf names no servers yet: fill it in, or export with --cube-conf")
    obstacle = _pipeline_obstacle(bundle, for_cpp=for_cpp)
    if not obstacle:
        files["config.yml"] = conf.write_pipeline(_pipeline(http_port, is_pir=is_pir)).encode()
        files["web_service.py"] = web_service(bundle.name, bundle.signature, is_pir=is_pir).encode()
    elif for_cpp:
        notes.append(f"nothing for the Pipeline service: {obstacle}")
    else:
        raise InputError(f"{bundle!r} cannot run in the Pipeline service: {obstacle}", hint=_OWN_RUNTIME)
    return ExportPlan(target, files, tuple(notes))


def _cpp_files(bundle: Bundle, described: Any, port: int, cube_conf: str) -> dict[str, bytes]:
    """Return the files of the C++ server beside its model."""
    options = conf.EngineOptions(port=port, op="GeneralDistKVInferOp" if bundle.sparse else "GeneralInferOp")
    work = conf.work_directory(_WORK, _SERVER, described, options)
    files = {f"{_WORK}/{path}": text.encode() for path, text in work.items()}
    if bundle.sparse:
        files[f"{_WORK}/cube.conf"] = (cube_conf or _cube_conf_template(next(iter(bundle.sparse)))).encode()
    return files | {"proj.conf": conf.write_flags(conf.server_flags(_WORK, port=port)).encode()}


def _pipeline_obstacle(bundle: Bundle, *, for_cpp: bool) -> str:
    """Return the reason why the Pipeline service cannot run the export; empty if it can."""
    if bundle.sparse:
        return "it cannot look ids up, and there are tables"
    if for_cpp and _without_aliases(bundle.signature) != bundle.signature:
        return f"it needs a description without aliases; export another for {TARGETS[1]}"
    return ""


def _without_aliases(signature: Signature) -> Signature:
    """Return a signature with the program's own names.

    The Pipeline service looks types and outputs up by the program's names. It drops any other alias from the answer, or
    gives it to the output in its position.
    """

    def named(variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        return tuple(variable.model_copy(update={"alias": ""}) for variable in variables)

    return Signature(feed=named(signature.feed), fetch=named(signature.fetch))


def _program_of(bundle: Bundle) -> tuple[str, str]:
    program, parameters = find_program(bundle.dense)
    if len(parameters) != 1:
        raise InputError(
            f"{bundle!r}: stock servers read one file of parameters, and {program} has {len(parameters)}",
            hint=_OWN_RUNTIME,
        )
    return program, parameters[0]


def _check_cpp(bundle: Bundle, program: str) -> None:
    how = "Save it with Paddle 3.1.1 or older and `FLAGS_enable_pir_api=0`. Or: "
    if program.endswith(".json"):
        raise InputError(
            f"{bundle!r} holds a PIR program ({program}); the engine of Paddle Serving 0.9 reads old programs only",
            hint=how + _OWN_RUNTIME,
        )
    version = bundle.needs.framework_version
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not numbers or numbers > _NEWEST_FOR_STOCK:
        raise InputError(
            f"{bundle!r} was saved by Paddle {version or '(unknown)'}; programs that Paddle Serving 0.9 can run come "
            f"from Paddle 3.1.1 or older",
            hint=how + _OWN_RUNTIME,
            framework_version=version,
        )


def _lookup_op_signature(bundle: Bundle) -> tuple[Signature, list[str]]:
    """Return the signature for the C++ look-up op, and the inputs that it takes as ids.

    The op knows one table, of float32 rows; makes rows of rank 2; takes every int64 input for ids and no other. Its
    counterpart for quantised rows, GeneralDistKVQuantInferOp, does not help: since 0.5.0 it has not run the model.

    Raises:
        InputError: The bundle needs more than that.
    """
    signature, tables = bundle.signature, bundle.sparse
    narrow = {name: table.kind.dtype for name, table in tables.items() if table.kind.dtype != np.float32}
    by_feed: dict[str, list[Lookup]] = {}
    for lookup in signature.lookups:
        by_feed.setdefault(lookup.feed, []).append(lookup)
    feeds = []
    for variable in signature.feed:
        lookups = by_feed.get(variable.name, [])
        why = ""
        if len(lookups) > 1:
            why = f"{variable.name!r} is looked up {len(lookups)} times"
        elif lookups and variable.dtype != "int64":
            why = f"the ids {variable.name!r} are {variable.dtype}, not int64"
        elif lookups and variable.shape:
            why = f"the ids {variable.name!r} have a shape, {list(variable.shape)}, and it makes rows of rank 2"
        elif not lookups and variable.dtype == "int64":
            why = f"it would take {variable.name!r} for ids"
        if len(tables) != 1:
            why = f"there are {len(tables)} tables, and it knows one"
        elif narrow:
            why = "".join(
                f"the rows of table {name!r} are {dtype}, and it reads float32" for name, dtype in narrow.items()
            )
        if why:
            raise InputError(f"{bundle!r} cannot use Paddle Serving's look-up op: {why}", hint=_OWN_RUNTIME)
        name = lookups[0].input if lookups else variable.name
        feeds.append(
            Variable(name=name, alias=variable.alias or variable.name, dtype=variable.dtype, shape=variable.shape)
        )
    return Signature(feed=tuple(feeds), fetch=signature.fetch), [lookup.input for lookup in signature.lookups]


def _cube_conf_template(table: str) -> str:
    entry = {
        "dict_name": table,
        "shard": 1,
        "dup": 1,
        "timeout": 200,
        "retry": 3,
        "backup_request": 100,
        "type": "ipport_list",
        "load_balancer": "rr",
        "nodes": [{"ipport_list": "list://"}],
    }
    return json.dumps([entry], indent=2) + "\n"


def _pipeline(http_port: int, *, is_pir: bool) -> conf.PipelineConfig:
    model = {"client_type": "local_predictor", "model_config": _SERVER, "devices": "", "mem_optim": not is_pir}
    return conf.PipelineConfig(
        rpc_port=http_port - 1,
        http_port=http_port,
        worker_num=4,
        # One thread: several would share a predictor without a lock and mix up answers.
        dag=conf.Dag(is_thread_op=True),
        op={"model": conf.PipelineOp(concurrency=1, local_service_conf=conf.LocalService.model_validate(model))},
    )


def export(bundle: Bundle, plan: ExportPlan, folder: str | os.PathLike[str]) -> Path:
    """Write the planned files to a new folder, which appears complete or not at all.

    Raises:
        Conflict: The folder exists.
        IntegrityError: The bundle is damaged.
    """
    target = Path(folder).absolute()
    bundle.verify()
    with published(target, f"exporting {bundle.name}:{bundle.version}") as temporary:
        for path, source in plan.files.items():
            place = temporary / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, Path):
                shutil.copyfile(source, place)
            else:
                place.write_bytes(source)
            sync_file(place)
    return target
