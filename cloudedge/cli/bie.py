"""``cloudedge bie``: keep an account's configs, secrets, registries, apps and node labels as a folder of documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from cloudedge.cli._context import configuration
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, size, table_out
from cloudedge.errors import ConfigError

if TYPE_CHECKING:
    from cloudedge.config import CloudConfig
    from cloudedge.edge_bie.sync import Applied, DesiredAccount, Sync, SyncPlan

__all__ = ["app"]

_PENDING, _FAILURE = 2, 1


class _Group(TyperGroup):
    """Commands whose exit code 2 means pending changes: a usage error exits with 1, like other failures."""

    def make_context(self, *args: Any, **others: Any) -> Any:
        """Parse the command line up to the command's name."""
        with _usage_errors_fail():
            return super().make_context(*args, **others)

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest, and run the command."""
        with _usage_errors_fail():
            return super().invoke(ctx)


@contextmanager
def _usage_errors_fail() -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if getattr(error, "exit_code", 0) == _PENDING:
            error.exit_code = _FAILURE  # type: ignore[attr-defined]  # the framework's own class
        raise


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Keep a BIE account in the state of a folder of YAML. Begin with `cloudedge bie export ./account`.",
)

FOLDER = typer.Argument(..., metavar="FILE_OR_DIR", help="YAML documents: configs, secrets, registries, apps, nodes.")
CLOUD = typer.Option("", "--cloud", "-c", metavar="NAME|URL", help="A cloud from cloudedge.yaml, or its address.")
STATE = typer.Option(
    None, "--state", metavar="DIR", help="Folder of history and audit; ~/.cloudedge/bie/... by default."
)
ADOPT = typer.Option(False, "--adopt", help="Take over objects without an owner that the documents name.")
DELETE = typer.Option(False, "--delete", help="Delete objects of this set that the documents no longer name.")


@app.command()
def plan(
    folder: Path = FOLDER,
    cloud: str = CLOUD,
    state: Path = STATE,
    adopt: bool = ADOPT,
    delete: bool = DELETE,
    as_json: bool = JSON,
) -> None:
    """Show what apply would change, and change nothing. Exits with 0 in sync, 2 changes pending, 1 failure.

    Fields that the control plane adds by itself (versions, times, defaults) make no difference.

    Example: cloudedge bie plan ./account --cloud prod
    """
    with _open_sync(cloud, state) as sync:
        _finish(sync.plan(_desired(sync, folder), adopt=adopt, delete=delete), as_json=as_json)


@app.command()
def apply(
    folder: Path = FOLDER,
    cloud: str = CLOUD,
    state: Path = STATE,
    adopt: bool = ADOPT,
    delete: bool = DELETE,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Make the account match the documents: configs, secrets, registries, apps, then labels.

    Every write is read back and recorded in the audit. A second apply writes nothing. If interrupted, run it again.

    Example: cloudedge bie apply ./account --cloud prod && cloudedge bie wait ./account --cloud prod
    """
    with _open_sync(cloud, state) as sync:
        desired = _desired(sync, folder)
        if dry_run:
            _finish(sync.plan(desired, adopt=adopt, delete=delete), as_json=as_json)
        done = sync.apply(
            desired, adopt=adopt, delete=delete, on_step=lambda s: say("{} {} {}", s.verb, s.kind, s.name)
        )
        _show_applied(done, as_json=as_json)
        if done.plan.steps and not as_json:
            say("next: cloudedge bie wait {}{}", folder, f" --cloud {cloud}" if cloud else "")


@app.command()
def drift(folder: Path = FOLDER, cloud: str = CLOUD, state: Path = STATE, as_json: bool = JSON) -> None:
    """Show what others changed since the last apply from this machine. Exits with 0 nothing, 2 something, 1 failure.

    It compares the account with the applied state, not with the current documents; those only name the set.
    """
    with _open_sync(cloud, state) as sync:
        _finish(sync.drift(_set_name(folder)), as_json=as_json, is_drift=True)


@app.command()
def wait(
    folder: Path = FOLDER,
    cloud: str = CLOUD,
    state: Path = STATE,
    timeout_s: float = typer.Option(600, "--timeout", min=1, help="Time limit for everything, in seconds."),
    poll_s: float = typer.Option(5, "--poll", min=0.1, help="Seconds between two looks."),
    skip_offline: bool = typer.Option(False, "--skip-offline", help="Do not wait for nodes that are offline now."),
    as_json: bool = JSON,
) -> None:
    """Wait until the documents' apps run on every matching node; exits with 1 if one failed or the time is over.

    Runs means: online, this version accepted, new instances, every container running, no cause, in two reports.
    """
    from cloudedge.edge_bie.sync import wait_deployed  # noqa: PLC0415 - not needed for --help

    with _open_sync(cloud, state) as sync:
        wanted = _desired(sync, folder).apps
        there = [found for name in wanted if (found := sync.bie.app(name)) is not None]
        for name in sorted({*wanted} - {found.name for found in there}):
            raise ConfigError(f"app {name} does not exist yet", hint=f"Create it with `cloudedge bie apply {folder}`.")
        arrivals = wait_deployed(
            sync.bie,
            there,
            timeout_s=timeout_s,
            poll_s=poll_s,
            skip_offline=skip_offline,
            on_change=lambda a: say("{} on {}: {} {}", a.app, a.node, a.verdict.state, a.verdict.reason),
        )
    if as_json:
        json_out([asdict(arrival) for arrival in arrivals])
    else:
        rows = [(a.app, a.node, a.verdict.state, a.verdict.reason) for a in arrivals]
        table_out(("app", "node", "state", "reason"), rows)
    if any(arrival.verdict.state != "deployed" for arrival in arrivals):
        raise typer.Exit(1)


@app.command()
def verify(
    folder: Path = FOLDER,
    cloud: str = CLOUD,
    state: Path = STATE,
    files: bool = typer.Option(True, help="Download every file and compare its digests."),
    as_json: bool = JSON,
) -> None:
    """Verify in fact: download every file, send every probe to every node. Exits with 1 if one is wrong."""
    from cloudedge.edge_bie.sync import verify as check_all  # noqa: PLC0415

    with _open_sync(cloud, state) as sync:
        checks = list(check_all(_desired(sync, folder), sync.bie, files=files))
    if as_json:
        json_out([asdict(check) for check in checks])
    else:
        table_out(("what", "result"), [(check.what, check.problem or "ok") for check in checks])
    if any(check.problem for check in checks):
        raise typer.Exit(1)


@app.command()
def rollback(
    folder: Path = FOLDER,
    cloud: str = CLOUD,
    state: Path = STATE,
    to: int = typer.Option(None, "--to", metavar="NUMBER", help="A state of the history; the previous one by default."),
    delete: bool = DELETE,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Apply an earlier state from this machine's history. Doing it twice returns to the current state.

    BIE keeps no history: states applied from other machines are unknown here.
    """
    with _open_sync(cloud, state) as sync:
        before = sync.history.before(_set_name(folder), to)
        say("state {} of {}, applied by {}", before.number, before.at, before.by)
        desired = sync.recall(before)
        if dry_run:
            _finish(sync.plan(desired, delete=delete), as_json=as_json)
        _show_applied(sync.apply(desired, delete=delete), as_json=as_json)


@app.command()
def history(folder: Path = FOLDER, cloud: str = CLOUD, state: Path = STATE, as_json: bool = JSON) -> None:
    """List the states applied from this machine, newest first."""
    with _open_sync(cloud, state) as sync:
        states = sync.history.states(_set_name(folder))
    if as_json:
        json_out([{k: v for k, v in vars(each).items() if k != "documents"} for each in states])
    else:
        rows = [(s.number, s.at, s.by, s.state, s.steps) for s in states]
        table_out(("number", "at", "by", "state", "steps"), rows)


@app.command()
def export(
    folder: Path = FOLDER,
    cloud: str = CLOUD,
    only: str = typer.Option("", "--set", metavar="NAME", help="Objects of this set only; everything by default."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace existing documents."),
    dry_run: bool = DRY_RUN,
) -> None:
    """Write an account as documents; a plan of them is in sync. Secrets are not exported: null keeps them.

    Objects of fleets are left out: they are created for every release.
    """
    from cloudedge.edge_bie.sync import dump_documents, export_documents, write_documents  # noqa: PLC0415

    with _open_sync(cloud, None) as sync:
        documents = export_documents(sync.bie, only=only)
    if dry_run:
        typer.echo(dump_documents(documents), nl=False)
        return
    for file in write_documents(documents, folder, overwrite=overwrite):
        say("wrote {}", file)
    say("next: cloudedge bie plan {}", folder)


@app.command()
def node(
    name: str = typer.Argument(..., help="The node's name."),
    cloud: str = CLOUD,
    label: list[str] = typer.Option([], "--label", metavar="KEY=VALUE", help="An initial label; may be repeated."),
    install: bool = typer.Option(False, "--install", help="Print the command that makes a machine this node."),
) -> None:
    """Create a node unless it exists, and print the command that makes a machine this node.

    The install command holds a token that is valid for one hour: anyone with it can become that node.
    """
    from cloudedge.edge_bie.client import Node  # noqa: PLC0415

    pairs = [each.partition("=") for each in label]
    with _open_sync(cloud, None) as sync:
        found = sync.bie.put_node(Node(name, labels={key: value for key, _, value in pairs}))
        say("{} is {}", found.name, "not connected yet" if found.ready == "never" else found.ready)
        if install:
            typer.echo(sync.bie.install_command(name))


@contextmanager
def _open_sync(cloud: str, state: Path | None) -> Iterator[Sync]:
    from cloudedge.edge_bie.client import AuditFile, Bie, open_objects, state_folder  # noqa: PLC0415
    from cloudedge.edge_bie.sync import Sync  # noqa: PLC0415

    settings = _settings(cloud)
    folder = state or state_folder(settings)
    objects = None if settings.objects is None else open_objects(settings.objects)
    audit = AuditFile(folder / "audit.jsonl")
    with Bie(settings, audit=audit) as bie, Sync(bie, objects=objects, folder=folder) as sync:
        yield sync


def _settings(cloud: str) -> CloudConfig:
    from cloudedge.config import CloudConfig  # noqa: PLC0415

    clouds = configuration().clouds
    if cloud in clouds:
        return clouds[cloud]
    if cloud.startswith(("http://", "https://")):
        return CloudConfig.from_url(cloud)
    if not cloud and len(clouds) == 1:
        return next(iter(clouds.values()))
    known = ", ".join(sorted(clouds)) or "none"
    raise ConfigError(
        f"the cloud {cloud!r} is not configured" if cloud else "no cloud was given",
        hint=f"Give `--cloud` an address or a name from cloudedge.yaml, which has {known}.",
    )


def _desired(sync: Sync, folder: Path) -> DesiredAccount:
    from cloudedge.edge_bie.sync import desired_state, load_documents  # noqa: PLC0415

    return desired_state(load_documents(folder), sync.objects)


def _set_name(folder: Path) -> str:
    from cloudedge.edge_bie.sync import load_documents  # noqa: PLC0415

    return next((document.name for document, _ in load_documents(folder) if document.kind == "set"), "default")


def _as_json(plan: SyncPlan) -> dict[str, Any]:
    return {"in_sync": plan.is_in_sync, **asdict(plan)}


def _finish(plan: SyncPlan, *, as_json: bool, is_drift: bool = False) -> None:
    """Print a plan and exit with its code."""
    if as_json:
        json_out(_as_json(plan))
    else:
        _show(plan, is_drift=is_drift)
    raise typer.Exit(_FAILURE if plan.problems else _PENDING if plan.steps else 0)


def _show(plan: SyncPlan, *, is_drift: bool) -> None:
    """Print what apply would change; for drift, whose plan would undo it, print what others changed."""
    signs = {"create": "-"} if is_drift else {"create": "+", "delete": "-"}
    for step in plan.steps:
        verb = "" if is_drift else f"{step.verb} "
        typer.echo(f"{signs.get(step.verb, '~')} {verb}{step.kind} {step.name}: {step.reason}")
        for difference in step.differences if step.verb != "create" else ():
            before, after = _shorten(difference.old), _shorten(difference.new)
            typer.echo(f"    {difference.path}: " + (f"{after} -> {before}" if is_drift else f"{before} -> {after}"))
    for note in plan.notes:
        say("[yellow]note[/]: {}", note)
    for problem in plan.problems:
        say("[bold red]problem[/]: {}", problem)
    say("in sync" if plan.is_in_sync else "{} changed" if is_drift else "{} would change", len(plan.steps))


def _show_applied(done: Applied, *, as_json: bool) -> None:
    if as_json:
        json_out({"number": done.number, "sent_bytes": done.sent_bytes, **_as_json(done.plan)})
        return
    for note in done.plan.notes:
        say("[yellow]note[/]: {}", note)
    if done.plan.steps:
        say(
            "[green]done[/]: {} writes, {} uploaded, state {}", len(done.plan.steps), size(done.sent_bytes), done.number
        )
    else:
        say("in sync; nothing was written")


def _shorten(value: Any, longest: int = 60) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."
