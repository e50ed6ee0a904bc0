"""`cloudedge dataset`: data sets cached near their readers, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from cloudedge.cli._output import DRY_RUN, JSON, json_out, progress_bar, say, size, table_out, yaml_out
from cloudedge.cli.dataset_cluster import CONTEXT, NAMESPACE, YES, connected, read, run_job
from cloudedge.errors import InputError

if TYPE_CHECKING:
    from cloudedge.cache import SampleSetStatus
    from cloudedge.cache.local import LocalDatasets, LocalStatus

__all__ = ["app"]

app = typer.Typer(
    help="Keep training data close to its readers: copy, warm up, mount. On this machine with JuiceFS; "
    "with --cluster as SampleSets of a Kubernetes cluster.",
    no_args_is_help=True,
)

CLUSTER = typer.Option(False, "--cluster", help="Use SampleSets of a cluster instead of this machine.")
STRATEGY = typer.Option("sequence", help="The distribution of files to partitions: sequence (in turn) or random.")
_COLUMNS = ("data set", "total", "cached", "available", "runtime", "phase", "age")


@app.command()
def create(
    name: str = typer.Argument(help="The data set's name, or a YAML file with a SampleSet."),
    source: str = typer.Option("", help="The source of its data: a folder, s3://, minio://, bos://..."),
    partitions: int = typer.Option(1, min=1, help="The number of caches its files are distributed to."),
    meta: str = typer.Option(
        "",
        help="This machine: the metadata engine; SQLite beside the data by default. Its password comes from "
        "CLOUDEDGE_DATASET_META_PASSWORD, so that it stays hidden.",
    ),
    storage: str = typer.Option("file", help="This machine: the kind of storage: file, s3, minio, bos..."),
    bucket: str = typer.Option("", help="This machine: the folder or bucket that keeps the data."),
    cache: list[str] = typer.Option([], help="Its cache, as FOLDER or FOLDER=MIB."),
    secret: str = typer.Option("", help="Cluster: the secret of its file system."),
    source_secret: str = typer.Option("", help="Cluster: the secret of its source."),
    cluster: bool = CLUSTER,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Create a data set; repeating it with the same settings changes nothing.

    Example: cloudedge dataset create criteo --source s3://bucket/criteo --cache /data/cache=102400
    Keys of an object store come from CLOUDEDGE_DATASET_ACCESS_KEY and CLOUDEDGE_DATASET_SECRET_KEY.
    """
    if cluster or name.endswith((".yaml", ".yml")):
        from cloudedge.cache import Level, SampleSet, SecretRef  # noqa: PLC0415 - kubernetes is not needed otherwise

        if name.endswith((".yaml", ".yml")):
            wanted = SampleSet.from_manifest(read(Path(name)))
        else:
            wanted = SampleSet(
                name,
                SecretRef(secret),
                partitions=partitions,
                source=source,
                source_secret=SecretRef(source_secret) if source_secret else None,
                levels=tuple(Level(folder, mib) for folder, mib in map(_level, cache)),
            )
        for finding in wanted.findings():
            if finding.severity != "error":
                say("[yellow]{}[/]: {}", finding.severity, finding)
        if dry_run:
            yaml_out(wanted.manifest())
            return
        with connected(context, namespace, of=wanted.namespace) as datasets:
            made = datasets.create(wanted)
        if as_json:
            json_out(made)
        say("SampleSet {} is created; next: cloudedge dataset wait {} --cluster", wanted.name, wanted.name)
        return
    folder, mib = _level(cache[0]) if cache else ("", 10240)
    if dry_run:
        say("would create the data set {} with {} partition(s)", name, partitions)
        return
    made_here = _local().create(
        name,
        source=source,
        partitions=partitions,
        meta=meta,
        storage=storage,
        bucket=bucket,
        keys=_keys(),
        cache=Path(folder) if folder else None,
        cache_mib=mib,
    )
    _show([made_here.status()], as_json=as_json)


@app.command("list")
def list_(
    cluster: bool = CLUSTER, context: str | None = CONTEXT, namespace: str | None = NAMESPACE, as_json: bool = JSON
) -> None:
    """List every data set."""
    if cluster:
        with connected(context, namespace) as datasets:
            _show(datasets.list(), as_json=as_json)
        return
    found = _local().list()
    _show(found, as_json=as_json)
    for each in found:
        if each.why:
            say("{}: {}", each.name, each.why)


@app.command()
def status(
    name: str,
    cluster: bool = CLUSTER,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    as_json: bool = JSON,
) -> None:
    """Show a data set's size, how much of it is cached, and the reason it waits."""
    if cluster:
        with connected(context, namespace) as datasets:
            found = datasets.status(name)
        _show([found], as_json=as_json)
        if not as_json:
            say("{}", found.why)
        return
    _show([_local().open(name).status()], as_json=as_json)


@app.command()
def wait(
    name: str,
    timeout_s: float = typer.Option(1800, help="The time limit."),
    cluster: bool = CLUSTER,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    as_json: bool = JSON,
) -> None:
    """Wait until a data set is usable; an existing one on this machine always is."""
    if not cluster:
        _show([_local().open(name).status()], as_json=as_json)
        return
    with connected(context, namespace) as datasets:
        _show([datasets.wait(name, timeout_s=timeout_s)], as_json=as_json)


@app.command()
def sync(
    name: str,
    source: str = typer.Option("", help="The source; the data set's own if left out."),
    destination: str = typer.Option("", help="A folder of the data set; its root if left out."),
    threads: int = typer.Option(10, min=1, help="Files copied at the same time."),
    verify: bool = typer.Option(
        False,
        "--verify",
        help="Compare the files' contents, which reads all of them. Cluster: copy all of them again.",
    ),
    no_https: bool = typer.Option(False, "--no-https", help="The source uses no TLS."),
    secret: str = typer.Option("", help="Cluster: the secret of the source; needed even for public data."),
    cluster: bool = CLUSTER,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    as_json: bool = JSON,
) -> None:
    """Copy from the source; a repeated run copies only new, changed and unfinished files."""
    if cluster:
        from cloudedge.cache import SampleJob, SecretRef  # noqa: PLC0415

        with connected(context, namespace) as datasets:
            job = SampleJob.sync(
                datasets.job_name(name, "sync"),
                name,
                secret=SecretRef(secret),
                source=source,
                destination=destination,
                threads=threads,
                # Otherwise a runtime compares only sizes, and misses changes that keep the size.
                **{"force_update" if verify else "update": True},
                **({"no_https": True} if no_https else {}),
            )
            run_job(datasets, job, as_json=as_json)
        return
    dataset = _local().open(name)
    with progress_bar(f"copying to {name}") as bar:
        done = dataset.sync(
            source,
            destination,
            keys=_keys(),
            threads=threads,
            verify=verify,
            https=not no_https,
            progress=lambda _files, settled: bar(settled),
        )
    if as_json:
        json_out(vars(done))
    else:
        say("{} files, {} copied ({}), {} unchanged", done.files, done.copied, size(done.bytes), done.skipped)


@app.command()
def warmup(
    name: str,
    paths: list[str] = typer.Argument(None, help="Files and folders of the data set; all of it if left out."),
    strategy: str = STRATEGY,
    threads: int = typer.Option(50, min=1, help="Files read at the same time."),
    cluster: bool = CLUSTER,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    as_json: bool = JSON,
) -> None:
    """Bring files into the caches before readers need them."""
    how = _strategy(strategy)
    if cluster:
        from cloudedge.cache import SampleJob  # noqa: PLC0415

        with connected(context, namespace) as datasets:
            made = datasets.job_name(name, "warmup")
            run_job(
                datasets,
                SampleJob.warmup(made, name, paths=paths or (), strategy=how, threads=threads),
                as_json=as_json,
            )
        return
    with progress_bar(f"warming up {name}") as bar:
        done = (
            _local()
            .open(name)
            .warmup(paths or (), strategy=how, threads=threads, progress=lambda _files, settled: bar(settled))
        )
    json_out({"files": list(done.files)}) if as_json else say("files by partition: {}", list(done.files))


@app.command()
def clear(
    name: str,
    paths: list[str] = typer.Argument(None, help="The paths to remove from the caches; all if left out."),
    cluster: bool = CLUSTER,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    as_json: bool = JSON,
) -> None:
    """Empty the caches; the data stays."""
    if cluster:
        from cloudedge.cache import SampleJob  # noqa: PLC0415

        with connected(context, namespace) as datasets:
            job = SampleJob.clear(datasets.job_name(name, "clear"), name, paths=paths or ())
            run_job(datasets, job, as_json=as_json)
        return
    _local().open(name).clear(paths or ())


@app.command()
def rm(
    name: str,
    paths: list[str] = typer.Argument(None, help="Files and folders of the data set; the data set itself if left out."),
    yes: bool = YES,
    cluster: bool = CLUSTER,
    context: str | None = CONTEXT,
    namespace: str | None = NAMESPACE,
    as_json: bool = JSON,
) -> None:
    """Delete files of a data set permanently, or the data set itself.

    Deleting a data set of a cluster removes only its caches: the data in the object store stays.
    """
    if cluster:
        from cloudedge.cache import SampleJob  # noqa: PLC0415

        with connected(context, namespace) as datasets:
            if paths:
                job = SampleJob.remove(datasets.job_name(name, "rmr"), name, paths=paths, confirmed=yes)
                run_job(datasets, job, as_json=as_json)
            elif yes:
                datasets.delete(name)
            else:
                raise InputError(f"SampleSet {name} would be deleted", hint="Confirm it with `--yes`.")
        return
    dataset = _local().open(name)
    dataset.remove(paths, confirmed=yes) if paths else dataset.destroy(confirmed=yes)


@app.command()
def mount(name: str, partition: int = typer.Option(0, min=0, help="The partition whose cache to use.")) -> None:
    """Mount a data set on this machine and print the mount point; it stays until `unmount`."""
    typer.echo(_local().open(name).mount(partition))


@app.command()
def unmount(name: str) -> None:
    """Unmount every partition of a data set on this machine."""
    _local().open(name).unmount()


def _local() -> LocalDatasets:
    from cloudedge.cache.local import LocalDatasets  # noqa: PLC0415

    return LocalDatasets()


def _show(found: Sequence[SampleSetStatus | LocalStatus], *, as_json: bool) -> None:
    if as_json:
        json_out([dict(vars(each)) for each in found])
        return
    rows = [
        (
            each.name,
            _size(each.total_bytes),
            _size(each.cached_bytes),
            _size(each.available_bytes),
            each.runtime or "-",
            each.phase or "-",
            _age(each),
        )
        for each in found
    ]
    table_out(_COLUMNS, rows)


def _age(each: SampleSetStatus | LocalStatus) -> str:
    created = getattr(each, "created", "")
    try:
        since = datetime.strptime(created, "%Y-%m-%dT%H:%M:%S%z")
        seconds = (datetime.now(timezone.utc) - since).total_seconds()
    except ValueError:
        seconds = getattr(each, "age_s", 0.0)
    for count, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= count:
            return f"{seconds / count:.1f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _size(count: int | None) -> str:
    return "-" if count is None else size(count)


def _level(text: str) -> tuple[str, int]:
    folder, _, mib = text.partition("=")
    if mib and not mib.isdecimal():
        raise InputError(f"{text!r} is not FOLDER or FOLDER=MIB")
    return folder, int(mib or 10240)


def _strategy(text: str) -> Literal["sequence", "random"]:
    if text == "sequence":
        return "sequence"
    if text == "random":
        return "random"
    raise InputError(f"the strategy {text!r} does not exist", hint="Use sequence or random.")


def _keys() -> tuple[str, str]:
    from cloudedge.cache.local import keys_given  # noqa: PLC0415

    return keys_given()
