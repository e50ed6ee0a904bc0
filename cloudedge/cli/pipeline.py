"""`cloudedge pipeline run | render | submit | components | stop`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out
from cloudedge.errors import InputError

if TYPE_CHECKING:
    from cloudedge.pipeline import Compiled, PipelineStep

__all__ = ["app"]

app = typer.Typer(
    help="""Run data set, training, model hub, serving and VisualDL as one pipeline, locally or on Kubeflow.

    Locally:   cloudedge pipeline run pipeline.py --local --set source=file:///data/clicks

    On Kubeflow:   cloudedge pipeline submit pipeline.py --host http://ml-pipeline-ui
    """,
    no_args_is_help=True,
)

FILE = typer.Argument(..., metavar="FILE", help="A Python file with a @dsl.pipeline, or a compiled one (YAML).")
FUNCTION = typer.Option("", metavar="NAME", help="The pipeline's name, if the file has several.")
SET = typer.Option([], "--set", metavar="NAME=VALUE", help="A parameter of the pipeline; may be repeated.")
ROOT = typer.Option(None, metavar="DIR", help="The folder of local runs; ~/.cloudedge/pipeline if left out.")


@app.command()
def run(
    file: Path = FILE,
    local: bool = typer.Option(False, "--local", "-l", help="Run on this machine; for Kubeflow, see submit."),
    function: str = FUNCTION,
    values: list[str] = SET,
    root: Path | None = ROOT,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Run a pipeline on this machine, with kfp's own local runner; needs no cluster and no image.

    Example: cloudedge pipeline run examples/ctr/pipeline.py --local --set source=file://$PWD/out/clicks
    """
    from cloudedge.pipeline import default_root, run_local, steps_of  # noqa: PLC0415 - slow to import

    if not local:
        raise InputError(
            "run works on this machine only, with --local",
            hint="Add `--local`, or run `cloudedge pipeline submit FILE --host URL` for Kubeflow.",
        )
    compiled, arguments = _load(file, function, values)
    if dry_run:
        _show(steps_of(compiled, arguments), as_json=as_json)
        return
    results = run_local(compiled, arguments, root=root)
    if as_json:
        json_out(results)
    else:
        rows = [(each["step"], each["name"], each.get("url") or each.get("path") or "") for each in results]
        table_out(("step", "name", "where"), rows)
    running = [each["name"] for each in results if each.get("url")]
    if running:
        where = "" if root is None else f" --root {root}"
        say("{} go on; to end them, run: cloudedge pipeline stop{}", ", ".join(running), where)
    else:
        say("the results are in {}", root or default_root())


@app.command()
def render(
    file: Path = FILE,
    function: str = FUNCTION,
    values: list[str] = SET,
    objects: bool = typer.Option(False, "--objects", help="Print the Kubernetes objects its steps make instead."),
    as_json: bool = JSON,
) -> None:
    """Print a pipeline for Kubeflow, or the Kubernetes objects that its steps make.

    The digest of a served model is known only when the step runs; zeros stand for it.

    Example: cloudedge pipeline render examples/ocr/pipeline.py --objects
    """
    import yaml  # noqa: PLC0415 - not needed for --help

    from cloudedge.pipeline import objects_of, steps_of  # noqa: PLC0415 - slow to import

    compiled, arguments = _load(file, function, values)
    if not objects:
        json_out([each for each in (compiled.spec, compiled.platform) if each]) if as_json else typer.echo(
            compiled.text(), nl=False
        )
        return
    made = {step.task: objects_of(step.inputs) for step in steps_of(compiled, arguments)}
    if as_json:
        json_out(made)
        return
    for task, found in made.items():
        for each in found:
            typer.echo(f"---\n# {task}\n{yaml.safe_dump(each, sort_keys=False, width=1000)}", nl=False)


@app.command()
def submit(
    file: Path = FILE,
    host: str = typer.Option(..., "--host", metavar="URL", help="The address of Kubeflow Pipelines."),
    function: str = FUNCTION,
    values: list[str] = SET,
    experiment: str = typer.Option("", help="The run's experiment; Kubeflow's default if left out."),
    name: str = typer.Option("", help="Name of the run; the pipeline's name and the time if left out."),
    namespace: str = typer.Option("", "--namespace", "-n", help="Namespace of the run, if Kubeflow has several users."),
    service_account: str = typer.Option("pipeline-runner", help="The service account of its steps."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Submit a pipeline to Kubeflow and start it; no step comes from Kubeflow's cache.

    Example: cloudedge pipeline submit examples/ctr/pipeline.py --host http://ml-pipeline-ui --set source=bos://...
    """
    from cloudedge.pipeline import steps_of, submit  # noqa: PLC0415 - slow to import

    compiled, arguments = _load(file, function, values)
    if dry_run:
        _show(steps_of(compiled, arguments), as_json=as_json)
        return
    started = submit(
        compiled,
        arguments,
        host=host,
        experiment=experiment,
        run_name=name,
        namespace=namespace,
        service_account=service_account,
    )
    if as_json:
        json_out(started)
    else:
        typer.echo(started["run_id"])
    say("{} runs; see {}", compiled.name, started["url"])


@app.command()
def components(
    folder: Path = typer.Argument(..., metavar="DIR", help="The target folder; files of the same name are replaced."),
    image: str = typer.Option("", metavar="IMAGE", help="The launcher's image; cloudedge-pipeline:latest if left out."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Write the five steps as component files for versions 1 and 2 of Kubeflow's SDK.

    Example: cloudedge pipeline components ./yaml --image registry.example/cloudedge-pipeline:0.1.0
    """
    from cloudedge.pipeline import STEPS, component_yaml  # noqa: PLC0415 - slow to import

    files = {folder / f"{step}.yaml": component_yaml(step, image=image) for step in STEPS}
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    if as_json:
        json_out([str(path) for path in files])
    else:
        for path in files:
            typer.echo(str(path))


@app.command()
def stop(root: Path | None = ROOT, as_json: bool = JSON) -> None:
    """End the services that local runs left running; models, data and logs stay.

    Example: cloudedge pipeline stop
    """
    from cloudedge.pipeline import default_root  # noqa: PLC0415 - slow to import
    from cloudedge.pipeline import stop as end  # noqa: PLC0415

    ended = end(root or default_root())
    if as_json:
        json_out(ended)
    say("{}", f"ended {', '.join(ended)}" if ended else "nothing was running")


def _load(file: Path, function: str, values: list[str]) -> tuple[Compiled, dict[str, Any]]:
    from cloudedge.pipeline import compile_file  # noqa: PLC0415 - slow to import

    compiled = compile_file(file, function)
    wrong = [value for value in values if "=" not in value]
    if wrong:
        raise InputError(f"--set {wrong[0]}: wanted NAME=VALUE")
    return compiled, compiled.typed({name: text for name, _, text in (value.partition("=") for value in values)})


def _show(steps: list[PipelineStep], *, as_json: bool) -> None:
    if as_json:
        json_out([{"task": step.task, "step": step.inputs.step, **vars(step.inputs)} for step in steps])
    else:
        rows = [(step.task, step.inputs.step, step.inputs.name, step.inputs.action) for step in steps]
        table_out(("task", "step", "name", "action"), rows)
