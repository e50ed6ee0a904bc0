"""Splitting as callers see it: a saved model or a live layer in, a folder that can be packed out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cloudedge
from cloudedge import errors
from cloudedge.bundle.contents import (
    Probes,
    Signature,
    find_program,
    join_files,
    parameters_of,
    parse_part,
    published,
    read_part,
)
from cloudedge.bundle.splitting._job import Job
from cloudedge.bundle.splitting._report import SplitReport
from cloudedge.errors import InputError, NotFound, Unavailable

__all__ = ["SplitModel", "plan_split", "split"]

_STDERR_SHOWN = 400


@dataclass(frozen=True)
class SplitModel:
    """A model in pieces, in a folder of its own.

    Example:
        >>> model = split("out/ctr", "out/ctr-split")  # doctest: +SKIP
        >>> Bundle.pack(  # doctest: +SKIP
        ...     model.folder, name="ctr", sparse=model.tables, signature=model.signature, probes=model.probes
        ... )
    """

    root: Path
    folder: Path
    """The dense program: what `Bundle.pack` packs."""
    tables: Mapping[str, Path]
    """Table files by name; keys are row numbers."""
    signature: Signature
    """What clients feed and get, ids included, and which ids become rows of which table."""
    probes: Probes
    """Requests with the whole model's answers."""
    report: SplitReport

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> SplitModel:
        """Open the folder that a split wrote.

        Raises:
            NotFound: it holds no split model.
        """
        path = Path(root)
        try:
            report = parse_part(SplitReport, json.loads((path / "report.json").read_bytes()), "report.json")
            return cls(
                root=path,
                folder=path / "dense",
                tables={table: path / "tables" / f"{table}.safetensors" for table in report.tables},
                signature=read_part(Signature, (path / "signature.json").read_bytes(), "signature.json"),
                probes=read_part(Probes, (path / "probes.json").read_bytes(), "probes.json"),
                report=report,
            )
        except FileNotFoundError as error:
            raise NotFound(f"{path} holds no split model: {error.filename} is missing", path=str(path)) from error


def split(
    model: Any,
    output: str | os.PathLike[str],
    *,
    input_spec: Sequence[Any] | None = None,
    samples: str | os.PathLike[str] | None = None,
    seed: int = 0,
    keep: Sequence[str] = (),
    table_names: Mapping[str, str] | None = None,
    feed_aliases: Mapping[str, str] | None = None,
    fetch_aliases: Mapping[str, str] | None = None,
    tolerance: float = 1e-5,
    timeout_s: float = 3600,
) -> SplitModel:
    """Split a trained model into a dense program and sparse tables, and check that they answer as the whole does.

    Each embedding look-up becomes an input of the dense program that takes the rows, in the shape of the ids plus one
    dimension; each embedding becomes a table whose keys are its row numbers. Pooling stays in the dense program.
    Paddle runs in a process of its own, so the caller's modes and scopes stay as they are.

    Args:
        model: A saved model (a folder, a prefix or a program file; ``.json`` or ``.pdmodel``) or a `paddle.nn.Layer`.
        output: A folder that is not there yet; it appears whole or not at all.
        input_spec: What the layer is fed (`paddle.static.InputSpec`), for a layer only.
        samples: Requests to compare with (.npz or .json, arrays by input name); made up if left out.
        seed: What made-up requests come from.
        keep: Parameters that stay in the dense program though they are only looked up.
        table_names: Names for tables, by parameter.
        feed_aliases: Names that clients use for inputs, by the model's own name.
        fetch_aliases: Names that clients use for outputs, by the model's own name.
        tolerance: The largest absolute difference between whole and pieces.
        timeout_s: How long it may take in all.

    Raises:
        InputError: it cannot be split without changing what it computes, or the pieces answered differently.
        Conflict: the output exists.
    """
    with published(Path(output).absolute(), f"splitting a model to {output}") as temporary:
        temporary.mkdir()
        _run(
            model,
            input_spec,
            temporary,
            timeout_s,
            samples=str(Path(samples).absolute()) if samples is not None else "",
            seed=seed,
            keep=tuple(keep),
            table_names=dict(table_names or {}),
            feed_aliases=dict(feed_aliases or {}),
            fetch_aliases=dict(fetch_aliases or {}),
            tolerance=tolerance,
        )
    return SplitModel.open(output)


def plan_split(
    model: Any,
    *,
    input_spec: Sequence[Any] | None = None,
    keep: Sequence[str] = (),
    table_names: Mapping[str, str] | None = None,
    timeout_s: float = 3600,
) -> SplitReport:
    """Say what a split would cut and keep, without writing anything; compares nothing.

    Raises:
        InputError: it cannot be split without changing what it computes.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = dict(table_names or {})
        answer = _run(model, input_spec, Path(folder), timeout_s, keep=tuple(keep), table_names=names, dry_run=True)
    return parse_part(SplitReport, answer, "the report")


def _run(model: Any, input_spec: Sequence[Any] | None, output: Path, timeout_s: float, **options: Any) -> Any:
    """Split into a folder that is there and empty, and leave nothing but the result in it."""
    with tempfile.TemporaryDirectory(prefix=".saved-", dir=output) as saved:
        if not isinstance(model, (str, os.PathLike)):
            model = _saved(model, input_spec, Path(saved) / "model")
        elif input_spec is not None:
            raise InputError("an input_spec is for a layer; a saved model has its own")
        program, pieces = _find(Path(model))
        parameters = str(join_files(pieces, Path(saved) / "whole.pdiparams")) if pieces else ""
        answer = _ask(Job(program=str(program), parameters=parameters, output=str(output), **options), timeout_s)
    for staged in output.glob(".whole.*"):
        staged.unlink()
    return answer


def _saved(layer: Any, input_spec: Sequence[Any] | None, prefix: Path) -> Path:
    """Save a live layer as it infers, and leave it as it was."""
    import paddle  # noqa: PLC0415 - heavy, and a caller with a layer has it already

    if not isinstance(layer, paddle.nn.Layer):
        raise InputError(
            f"cannot split a {type(layer).__name__}", hint="Give a saved model's path or a paddle.nn.Layer."
        )
    training = [each for each in layer.sublayers(include_self=True) if each.training]
    layer.eval()
    try:
        paddle.jit.save(layer, str(prefix), input_spec=list(input_spec) if input_spec is not None else None)
    except ValueError as error:
        raise InputError(
            f"the layer cannot be saved: {error}", hint="Pass input_spec=[paddle.static.InputSpec(...), ...]."
        ) from error
    finally:
        for each in training:
            each.training = True
    return prefix


def _find(model: Path) -> tuple[Path, list[Path]]:
    """Find program and parameters of a saved model.

    Raises:
        InputError: there is none, or more than one.
    """
    folder = model if model.is_dir() else model.parent
    names = [file.name for file in folder.iterdir() if file.is_file()] if folder.is_dir() else []
    if model.is_dir():
        program, parameters = find_program(names)
    else:
        programs = [name for name in (model.name, f"{model.name}.json", f"{model.name}.pdmodel") if name in names]
        if len(programs) != 1:
            raise InputError(
                f"{model}: one program (.json or .pdmodel) is needed, found {', '.join(programs) or 'none'}",
                hint="Name the program's file, or its path without the suffix.",
                path=str(model),
            )
        program = programs[0]
        parameters = parameters_of(program, names)
    return folder / program, [folder / name for name in parameters]


def _ask(job: Job, timeout_s: float) -> Any:
    home = str(Path(cloudedge.__file__).parent.parent)
    environment = os.environ | {
        "FLAGS_enable_pir_api": "1" if job.program.endswith(".json") else "0",
        "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", "")))),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "cloudedge.bundle.splitting"],
            input=json.dumps(asdict(job)),
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"splitting {job.program} took longer than {timeout_s} seconds", path=job.program) from error
    if done.returncode != 0 or not done.stdout:
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        raise InputError(
            f"the process that split {job.program} ended with {how}: {done.stderr.strip()[-_STDERR_SHOWN:]}",
            hint="Paddle chooses the format by the file's name: .json is PIR, .pdmodel an old program.",
            path=job.program,
        )
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"], hint=answer["hint"], **answer["facts"])
    return answer["report"]
