"""`cloudedge dataset run | schedule | unschedule | unblock`: the commands for data sets of a cluster only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, yaml_out
from cloudedge.errors import InputError

if TYPE_CHECKING:
    from cloudedge.cache import ClusterDatasets, SampleJob

__all__ = ["CONTEXT", "NAMESPACE", "YES", "app", "connected", "read", "run_job"]

app = typer.Typer(help="Data sets of a cluster.", no_args_is_help=True)

CONTEXT = typer.Option(None, help="A context of the kubeconfig.")
NAMESPACE = typer.Option(None, help="The namespace.")
YES = typer.Option(False, "--yes", help="Confirm the deletion.")
SCHEDULE = typer.Argument(help="The schedule's name.")


@app.command()
def run(
    file: Path = typer.Argument(help="A YAML file with a SampleJob, with any option of the resource."),
    yes: bool = YES,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Run a SampleJob of a cluster to its end; no job of its name may exist.

    Example: cloudedge dataset run nightly-sync.yaml
    """
    from cloudedge.cache import SampleJob  # noqa: PLC0415 - kubernetes is not needed otherwise

    job = SampleJob.from_manifest(read(file), confirmed=yes)
    if dry_run:
        yaml_out(job.manifest())
        return
    with connected(context, namespace, of=job.namespace) as datasets:
        run_job(datasets, job, as_json=as_json)


@app.command()
def schedule(
    name: str = SCHEDULE,
    cron: str = typer.Argument(
        help="The times, in five fields: '0 3 * * *' is every night at three, by the cluster's clock."
    ),
    command: list[str] = typer.Argument(help="The operation, after --: sync, warmup, clear or rm, with its arguments."),
    image: str = typer.Option(..., help="An image that contains cloudedge, preferably by digest."),
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Run an operation on a data set of a cluster at fixed times, through a CronJob that runs cloudedge.

    Example: cloudedge dataset schedule nightly '0 3 * * *' --image registry/cloudedge@sha256:... -- warmup criteo train
    """
    with connected(context, namespace) as datasets:
        made = datasets.schedule(name, cron, command, image=image, dry_run=dry_run)
    if as_json:
        json_out(list(made))
    elif dry_run:
        yaml_out(*made)
    else:
        say(
            "{} runs at {}; see its runs with kubectl get jobs; to end it, run: cloudedge dataset unschedule {}",
            name,
            cron,
            name,
        )


@app.command()
def unschedule(
    name: str = SCHEDULE,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    yes: bool = YES,
    dry_run: bool = DRY_RUN,
) -> None:
    """Remove a schedule; the data set stays, and an operation that runs at this moment goes on."""
    if dry_run:
        say("would delete the CronJob {} and its account", name)
        return
    if not yes:
        raise InputError(f"the schedule {name} would be deleted", hint="Confirm it with `--yes`.")
    with connected(context, namespace) as datasets:
        datasets.unschedule(name)


@app.command()
def unblock(
    name: str = typer.Argument(help="The data set."),
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    as_json: bool = JSON,
) -> None:
    """Remove the remains of a crashed warm-up of a cluster, because of which every other one says "file exists".

    Removes the folder .warmup of the data set and nothing else. Do not use it while a warm-up runs.
    """
    from cloudedge.cache import SampleJob  # noqa: PLC0415

    with connected(context, namespace) as datasets:
        run_job(datasets, SampleJob.unblock(datasets.job_name(name, "rmr"), name), as_json=as_json)


@contextmanager
def connected(context: str | None, namespace: str | None, *, of: str = "") -> Iterator[ClusterDatasets]:
    """Connect to a cluster.

    Args:
        context: A context of the kubeconfig.
        namespace: The namespace from the command line.
        of: The namespace of the object in a file.

    Raises:
        InputError: the two namespaces differ.
    """
    from cloudedge.cache import ClusterDatasets  # noqa: PLC0415
    from cloudedge.kube import Cluster  # noqa: PLC0415

    if of and namespace and of != namespace:
        raise InputError(
            f"the file has the namespace {of}, but --namespace is {namespace}", hint="Leave one of them out."
        )
    with Cluster.connect(context=context, namespace=namespace or of or None) as cluster:
        yield ClusterDatasets(cluster)


def run_job(datasets: ClusterDatasets, job: SampleJob, *, as_json: bool) -> None:
    """Run a job to its end and print its progress."""
    from cloudedge.cache import SCHEDULE_VARIABLE  # noqa: PLC0415

    done = datasets.run(
        job,
        schedule=os.environ.get(SCHEDULE_VARIABLE, ""),
        on_change=lambda state: say("{}: {}", state.name, state.phase or "waiting"),
    )
    if as_json:
        json_out(vars(done))


def read(path: Path) -> dict[str, Any]:
    """Read one object from a file.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    import yaml  # noqa: PLC0415 - not needed for --help

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no object", hint="Write one object, as `kubectl get -o yaml` prints it.")
    return found
