"""Runs of a pipeline: locally with kfp's own runner, or on Kubeflow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudedge.config import home
from cloudedge.errors import CloudEdgeError, Rejected, Unavailable
from cloudedge.pipeline._components import importing_kfp
from cloudedge.pipeline._environment import LOCAL, RESULTS
from cloudedge.pipeline._graph import Compiled, for_this_machine, steps_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

__all__ = ["PipelineFailed", "default_root", "run_local", "submit"]


class PipelineFailed(Rejected):
    """A step failed; `results` holds those of the steps before it."""


def default_root() -> Path:
    """Return the default folder of local runs."""
    return home() / "pipeline"


def run_local(
    compiled: Compiled, arguments: Mapping[str, Any] | None = None, *, root: Path | None = None
) -> list[dict[str, Any]]:
    """Run a pipeline on this machine, step by step; the steps' output goes to standard error.

    Services it starts go on: `cloudedge.pipeline.stop` ends them.

    Args:
        compiled: The pipeline.
        arguments: Values of its parameters.
        root: The folder for everything the run keeps.

    Returns:
        The result of each step, in the order of their execution.

    Raises:
        PipelineFailed: a step failed; its output says why.
        ConfigError: kfp is not installed.
    """
    from cloudedge.pipeline._local import LocalSteps  # noqa: PLC0415 - imported only where needed

    local, components = _kfp()
    steps_of(compiled, arguments)  # raises for wrong inputs before anything runs
    folder = (root or default_root()).absolute()
    results = folder / "runs" / f"{compiled.name}-{secrets.token_hex(4)}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.touch()
    graph = components.load_component_from_text(for_this_machine(compiled))
    try:
        with _environment({LOCAL: str(folder), RESULTS: str(results)}), contextlib.redirect_stdout(sys.stderr):
            local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(folder / "kfp"), raise_on_error=True)
            try:
                graph(**dict(arguments or {}))
            finally:
                # Otherwise every component called later in this process would run at once.
                local.config.LocalExecutionConfig.instance = None
    except CloudEdgeError:
        raise
    except RuntimeError as error:  # kfp's error for a failed task
        raise PipelineFailed(
            f"{compiled.name} stopped: {_COLOUR.sub('', str(error)).splitlines()[0]}",
            hint="Read the step's output above. A repeated run passes quickly through finished steps.",
            results=_read(results),
        ) from error
    finally:
        LocalSteps(folder).unmount()
    return _read(results)


def submit(
    compiled: Compiled,
    arguments: Mapping[str, Any] | None = None,
    *,
    host: str,
    experiment: str = "",
    run_name: str = "",
    service_account: str = "pipeline-runner",
    namespace: str = "",
) -> dict[str, str]:
    """Submit a pipeline to Kubeflow and start it; return the run's id and address.

    Raises:
        ConfigError: kfp is not installed.
        Unavailable: Kubeflow does not answer.
        Rejected: Kubeflow refuses the pipeline.
    """
    _kfp()
    import kfp  # noqa: PLC0415 - an extra, and slow to import
    from kfp_server_api.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    steps_of(compiled, arguments)
    with tempfile.TemporaryDirectory(prefix="cloudedge-") as scratch, contextlib.redirect_stdout(sys.stderr):
        package = Path(scratch, "pipeline.yaml")
        package.write_text(compiled.text(), encoding="utf-8")
        try:
            client = _client(kfp, host, namespace)
            run = client.create_run_from_pipeline_package(
                str(package),
                arguments=dict(arguments or {}),
                run_name=run_name or None,
                experiment_name=experiment or None,
                namespace=namespace or None,
                service_account=service_account or None,
                enable_caching=False,
            )
        except ApiException as error:
            raise Rejected(f"{host} answers {error.status} {error.reason}: {str(error.body or '')[:500]}") from error
        except HTTPError as error:
            raise Unavailable(f"{host} does not answer: {type(error).__name__}", hint="Check `--host`.") from error
    return {"run_id": str(run.run_id), "url": f"{host.rstrip('/')}/#/runs/details/{run.run_id}"}


def _client(kfp: Any, host: str, namespace: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it warns of servers older than 2.0, whatever the server
        return kfp.Client(host=host, namespace=namespace or "kubeflow")


def _kfp() -> tuple[Any, Any]:
    with importing_kfp():
        from kfp import components, local  # noqa: PLC0415 - an extra, and slow to import
    return local, components


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@contextlib.contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
