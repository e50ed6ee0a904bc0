"""`cloudedge train submit | status | logs | wait | stop | delete | list | render | fetch | pack`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._context import configuration
from cloudedge.cli._output import DRY_RUN, JSON, json_line, json_out, say, table_out
from cloudedge.errors import InputError

if TYPE_CHECKING:
    from cloudedge.kube import Cluster
    from cloudedge.training import Finding, JobStatus, Run, TrainingJob
    from cloudedge.training.local import LocalRun

__all__ = ["app"]

app = typer.Typer(
    help="""Train on a cluster (PaddleJob, Volcano) or on this machine, from the same manifest.

    A first run, locally:   cloudedge train submit job.yaml --local --wait

    The same on a cluster:   cloudedge train submit job.yaml -n ads --output pvc://models/ctr --wait

    Its model, packed:   cloudedge train pack ctr -n ads --as ctr
    """,
    no_args_is_help=True,
)

FILE = typer.Argument(..., metavar="FILE", help="A YAML file with one PaddleJob or Volcano Job.")
NAME = typer.Argument(..., help="The job's name.")
NAMESPACE = typer.Option("", "--namespace", "-n", help="Its namespace; the manifest's or the context's if left out.")
CONTEXT = typer.Option("", help="A context of the kubeconfig; the current one if left out.")
LOCAL = typer.Option(False, "--local", "-l", help="Use this machine instead of a cluster.")
CLASS = typer.Option(
    "", "--class", metavar="guaranteed|opportunistic", help="The job's class when it competes with others."
)
QUEUE = typer.Option(
    "", "--queue", help="The Volcano queue; the manifest's, or that of --class in cloudedge.yaml, if left out."
)
OUTPUT = typer.Option(
    "", "--output", metavar="URL", help="The location of its model: pvc://CLAIM/PATH, s3://, http://."
)
TIMEOUT = typer.Option(86400.0, "--timeout", metavar="SECONDS", help="The time to wait; the job goes on after that.")
SERVERS = typer.Option(
    False,
    "--ps-done-when-workers-done",
    help="Count the job as done once all workers succeeded: parameter servers may never end.",
)
YES = typer.Option(False, "--yes", "-y", help="Do not ask for confirmation.")

_COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_magenta")
_FLAVOURS = "operator|sampleset|paddlecloud"


@app.command()
def submit(
    file: Path = FILE,
    namespace: str = NAMESPACE,
    context: str = CONTEXT,
    local: bool = LOCAL,
    job_class: str = CLASS,
    queue: str = QUEUE,
    output: str = OUTPUT,
    replace: bool = typer.Option(
        False, "--replace", help="Delete a job of that name first, and wait until it is gone."
    ),
    wait_for_it: bool = typer.Option(False, "--wait", "-w", help="Wait until it has succeeded."),
    timeout: float = TIMEOUT,
    ps_done: bool = SERVERS,
    workdir: Path = typer.Option(Path(), help="--local: the folder in which its command starts."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Check a job and start it. Submitting the same job twice does no harm.

    A job that would crash the controller, hang or lose fields is refused with the reason before anything is sent.

    Example: cloudedge train submit job.yaml -n ads --class guaranteed
    """
    if local and output:
        hint = "Run `cloudedge train fetch NAME FOLDER --local` to copy the model."
        raise InputError("--output applies to clusters: a local run keeps its model in its own folder", hint=hint)
    job = _load(file, namespace, job_class, queue, output)
    if local:
        run: Run | LocalRun | None = _submit_locally(job, workdir, replace=replace, dry_run=dry_run, as_json=as_json)
    else:
        run = _submit_to_cluster(job, _cluster(context, namespace), replace=replace, dry_run=dry_run, as_json=as_json)
    if run is None:
        return
    if wait_for_it:
        _wait(run, timeout, ps_done=ps_done, as_json=as_json)
        return
    where = "--local" if local else f"-n {run.namespace}"
    if as_json:
        json_out({"name": run.name, "namespace": run.namespace, "local": local})
    say("{} is submitted; next: cloudedge train logs {} {} --follow", run.name, run.name, where)


@app.command()
def status(
    name: str = NAME, namespace: str = NAMESPACE, context: str = CONTEXT, local: bool = LOCAL, as_json: bool = JSON
) -> None:
    """Show a job's state and the reasons it is not further: from its pods, events and queue.

    Example: cloudedge train status ctr -n ads
    """
    _show(_run(name, namespace, context, local=local).status(), as_json=as_json)


@app.command()
def logs(
    name: str = NAME,
    namespace: str = NAMESPACE,
    context: str = CONTEXT,
    local: bool = LOCAL,
    role: str = typer.Option(
        "", help="Only these: worker, ps, a Volcano task; --local: launch for the launcher's own."
    ),
    index: int = typer.Option(-1, help="Only this one of them, from 0."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on until all of them have ended."),
    tail: int = typer.Option(-1, help="Only this many earlier lines of each."),
    as_json: bool = JSON,
) -> None:
    """Print the logs of all pods of a job, interleaved, each line with its pod.

    Logs are deleted with their pods: `cleanPodPolicy: Never` keeps them, `cloudedge train stop` saves them first.

    Example: cloudedge train logs ctr -n ads --role worker --follow
    """
    run = _run(name, namespace, context, local=local)
    lines = run.logs(role=role, index=index if index >= 0 else None, follow=follow, tail=tail if tail >= 0 else None)
    for line in lines:
        if as_json:
            json_line({"pod": line.pod, "at": line.at, "text": line.text})
        else:
            colour = _COLOURS[zlib.crc32(line.pod.encode()) % len(_COLOURS)]
            typer.echo(f"{typer.style(line.pod, fg=colour)}: {line.text}")


@app.command()
def wait(
    name: str = NAME,
    namespace: str = NAMESPACE,
    context: str = CONTEXT,
    local: bool = LOCAL,
    timeout: float = TIMEOUT,
    ps_done: bool = SERVERS,
    as_json: bool = JSON,
) -> None:
    """Wait until a job has succeeded. Exits with 1 and its last output if it fails, or if the time is over.

    Example: cloudedge train wait ctr -n ads --timeout 3600
    """
    _wait(_run(name, namespace, context, local=local), timeout, ps_done=ps_done, as_json=as_json)


@app.command()
def stop(
    name: str = NAME,
    namespace: str = NAMESPACE,
    context: str = CONTEXT,
    local: bool = LOCAL,
    yes: bool = YES,
    dry_run: bool = DRY_RUN,
) -> None:
    """End a job and keep its logs on this machine.

    A PaddleJob cannot be suspended, so it is deleted once its logs are saved; a Volcano Job is aborted.

    Example: cloudedge train stop ctr -n ads
    """
    run = _run(name, namespace, context, local=local)
    if dry_run:
        say("would end {} and keep its logs", run.name)
        return
    if not yes:
        typer.confirm(f"End {run.namespace}/{run.name}?", abort=True, err=True)
    say("ended {}; its logs are in {}", run.name, run.stop())


@app.command()
def delete(
    name: str = NAME,
    namespace: str = NAMESPACE,
    context: str = CONTEXT,
    local: bool = LOCAL,
    yes: bool = YES,
    dry_run: bool = DRY_RUN,
) -> None:
    """Delete a job with its pods and logs, and wait until it is gone.

    Example: cloudedge train delete ctr -n ads --yes
    """
    run = _run(name, namespace, context, local=local)
    if dry_run:
        say("would delete {} with its pods and logs", run.name)
        return
    if not yes:
        typer.confirm(f"Delete {run.namespace}/{run.name} with its pods and logs?", abort=True, err=True)
    run.delete()
    say("deleted {}", run.name)


@app.command("list")
def list_(
    namespace: str = NAMESPACE,
    context: str = CONTEXT,
    everywhere: bool = typer.Option(False, "--all-namespaces", "-A", help="In all namespaces."),
    local: bool = LOCAL,
    as_json: bool = JSON,
) -> None:
    """List training jobs: PaddleJobs and Volcano Jobs of a namespace, or the runs on this machine.

    Example: cloudedge train list --all-namespaces
    """
    from cloudedge import training  # noqa: PLC0415 - slow to import

    if local:
        found = training.local.list_runs()
    else:
        found = training.list_runs(cluster=_cluster(context, namespace), everywhere=everywhere)
    if as_json:
        json_out([each.to_json() for each in found])
        return
    rows = [(s.namespace, s.name, s.state, s.mode, _counts(s), s.started) for s in found]
    table_out(("namespace", "name", "state", "mode", "pods", "since"), rows)


@app.command()
def render(
    file: Path | None = typer.Argument(None, metavar="[FILE]", help="A YAML file with one PaddleJob or Volcano Job."),
    flavour: str = typer.Option("", metavar=_FLAVOURS, help="The PaddleJob of the cluster; any if left out."),
    namespace: str = NAMESPACE,
    job_class: str = CLASS,
    queue: str = QUEUE,
    output: str = OUTPUT,
    priority_classes: bool = typer.Option(False, help="Print the PriorityClasses of the two job classes instead."),
    as_json: bool = JSON,
) -> None:
    """Print the manifests that submit would send, without a cluster. Exits with 1 if there are errors.

    Findings go to standard error.

    Example: cloudedge train render job.yaml --flavour paddlecloud --class opportunistic | kubectl apply -f -
    """
    import yaml  # noqa: PLC0415 - not needed for --help

    from cloudedge.training import JOB_CLASSES, Flavour  # noqa: PLC0415

    if priority_classes:
        manifests = [each.to_priority_class() for each in JOB_CLASSES.values()]
    else:
        if file is None:
            raise InputError("there is nothing to render", hint="Name a file, or add `--priority-classes`.")
        if flavour not in {"", *_FLAVOURS.split("|")}:
            raise InputError(f"{flavour!r} is not a flavour", hint=f"Use one of {_FLAVOURS.replace('|', ', ')}.")
        job = _load(file, namespace, job_class, queue, output)
        place = Flavour(flavour) if flavour else None
        _print_findings(job.validate(place))
        manifests = job.to_manifest(place)
    if as_json:
        json_out(manifests)
    else:
        typer.echo(yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def fetch(
    name: str = NAME,
    folder: Path = typer.Argument(..., help="The target folder; it must not exist yet."),
    namespace: str = NAMESPACE,
    context: str = CONTEXT,
    local: bool = LOCAL,
    image: str = typer.Option("", help="pvc://: an image with find, sha256sum and dd, instead of the job's own."),
) -> None:
    """Copy a job's model to this machine: from its volume claim, object store or address.

    Example: cloudedge train fetch ctr out/ctr -n ads
    """
    say("fetched to {}", _run(name, namespace, context, local=local).outputs.fetch(folder, image=image))


@app.command()
def pack(
    name: str = NAME,
    bundle: str = typer.Option(..., "--as", metavar="BUNDLE", help="The bundle's name."),
    version: str = typer.Option("auto", help="An integer, major.minor.patch, or auto for the next one."),
    split: bool = typer.Option(False, "--split", help="Split it first: its embeddings become sparse tables."),
    parent: str = typer.Option("", metavar="REF", help="Store only the table rows that differ from this bundle's."),
    namespace: str = NAMESPACE,
    context: str = CONTEXT,
    local: bool = LOCAL,
    as_json: bool = JSON,
) -> None:
    """Fetch a job's model and pack it as a bundle that names the job, its data, its code and its metrics.

    Example: cloudedge train pack ctr -n ads --as ctr --split
    """
    if parent and not split:
        raise InputError("--parent applies to tables, which only --split makes", hint="Add `--split`.")
    outputs = _run(name, namespace, context, local=local).outputs
    limits = configuration().limits
    packed = outputs.pack(bundle, version=version, split=split, parent=parent or None, limits=limits)
    if as_json:
        json_out({"name": packed.name, "version": packed.version, "digest": packed.manifest.digest})
    say("packed {}:{}; next: cloudedge release {}:{} --to TARGET", *(packed.name, packed.version) * 2)


def _load(file: Path, namespace: str, job_class: str, queue: str, output: str) -> TrainingJob:
    from cloudedge.training import TrainingJob  # noqa: PLC0415 - slow to import

    job = TrainingJob.from_yaml(file)
    job = job.in_namespace(namespace) if namespace else job
    job = job.with_queue(queue) if queue else job
    if job_class:
        job = job.with_class(job_class, queue=configuration().training.queues.get(job_class, ""))
    return job.with_output(output) if output else job


def _cluster(context: str, namespace: str) -> Cluster:
    from cloudedge.kube import Cluster  # noqa: PLC0415 - slow to import, and an extra

    return Cluster.connect(context=context or None, namespace=namespace or None)


def _run(name: str, namespace: str, context: str, *, local: bool) -> Run | LocalRun:
    from cloudedge import training  # noqa: PLC0415

    return training.local.attach(name) if local else training.attach(name, cluster=_cluster(context, namespace))


def _submit_locally(job: TrainingJob, workdir: Path, *, replace: bool, dry_run: bool, as_json: bool) -> LocalRun | None:
    from cloudedge.training import local  # noqa: PLC0415

    planned = local.plan(job)
    for each in planned.notes:
        say("note: {}", each)
    if dry_run:
        if as_json:
            json_out(planned.to_json())
        else:
            typer.echo(" ".join(planned.argv))
        return None
    return local.submit(job, replace=replace, workdir=workdir)


def _submit_to_cluster(
    job: TrainingJob, cluster: Cluster, *, replace: bool, dry_run: bool, as_json: bool
) -> Run | None:
    from cloudedge.training import carry_out, plan_submit  # noqa: PLC0415

    planned = plan_submit(job, cluster=cluster, replace=replace)
    _print_findings(planned.findings)
    if dry_run:
        if as_json:
            json_out(planned.to_json())
        else:
            rows = [
                (m["kind"], f"{m['metadata'].get('namespace', '')}/{m['metadata']['name']}") for m in planned.manifests
            ]
            table_out(("kind", "name"), rows)
            say("would {} it: {}", planned.action, planned.why)
        if planned.action == "refuse":
            raise typer.Exit(1)
        return None
    return carry_out(planned, cluster)


def _wait(run: Run | LocalRun, timeout: float, *, ps_done: bool, as_json: bool) -> None:
    from cloudedge.training.local import LocalRun  # noqa: PLC0415

    def show(now: JobStatus) -> None:
        say("{}: {}", now.name, ", ".join([now.state, _counts(now)]))
        for reason in now.reasons:
            say("  {}", reason)

    if isinstance(run, LocalRun):
        done = run.wait(timeout_s=timeout, on_change=show)
    else:
        done = run.wait(timeout_s=timeout, on_change=show, ps_done_when_workers_done=ps_done)
    if as_json:
        json_out(done.to_json())


def _show(now: JobStatus, *, as_json: bool) -> None:
    if as_json:
        json_out(now.to_json())
        return
    table_out(
        ("name", "state", "phase", "mode", "pods", "started", "ended"),
        [(now.name, now.state, now.phase, now.mode, _counts(now), now.started, now.ended)],
    )
    for reason in now.reasons:
        say("  {}", reason)


def _counts(now: JobStatus) -> str:
    return "; ".join(f"{name}: {role}" for name, role in now.roles.items())


def _print_findings(findings: Iterable[Finding]) -> None:
    colours = {"error": "bold red", "warning": "bold yellow", "note": "dim"}
    for finding in findings:
        if finding.severity != "error":  # errors are raised together
            say(f"[{colours[finding.severity]}]{finding.severity}[/]: {{}}", finding)
