"""``cloudedge hub``: copy bundles between hubs, tag them, show history, collect garbage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.cli._context import HUB, LOCAL, configuration, local_hub, named_hub
from cloudedge.cli._output import DRY_RUN, JSON, json_out, progress_bar, say, size, table_out
from cloudedge.clock import SystemClock, rfc3339
from cloudedge.errors import InputError

if TYPE_CHECKING:
    from cloudedge.hub import CopyPlan, Hub, Manifest, TagEntry

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Push, pull, tag and list bundles; collect garbage.")

REF = typer.Argument(..., metavar="REF", help="NAME:VERSION, NAME:TAG, NAME (newest) or NAME@sha256:DIGEST.")
TAGS = typer.Option([], "--tag", metavar="TAG", help="Point this tag at the bundle, too, after everything else.")
_VERSION_ANNOTATION = "org.opencontainers.image.version"


@app.command()
def push(
    ref: str = REF,
    hub: str = HUB,
    tag: list[str] = TAGS,
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Copy a bundle from the local hub to another. Sends only what is missing there; continues after a kill.

    Example: cloudedge hub push ctr:3 oci://registry.example/models --tag prod
    """
    config = configuration()
    _copy(local_hub(local), named_hub(hub, config), ref, tag, dry_run=dry_run, as_json=as_json, verb="pushed")


@app.command()
def pull(ref: str = REF, hub: str = HUB, local: Path = LOCAL, dry_run: bool = DRY_RUN, as_json: bool = JSON) -> None:
    """Copy a bundle from another hub into the local one. Every byte is verified on arrival."""
    config = configuration()
    _copy(named_hub(hub, config), local_hub(local), ref, [], dry_run=dry_run, as_json=as_json, verb="pulled")


@app.command()
def copy(
    ref: str = REF,
    source: str = typer.Argument(..., metavar="FROM", help="The hub that has the bundle."),
    target: str = typer.Argument(..., metavar="TO", help="The hub to copy it to."),
    tag: list[str] = TAGS,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Copy a bundle from one hub directly to another."""
    config = configuration()
    _copy(
        named_hub(source, config),
        named_hub(target, config),
        ref,
        tag,
        dry_run=dry_run,
        as_json=as_json,
        verb="copied",
    )


def _copy(source: Hub, target: Hub, text: str, tags: list[str], *, dry_run: bool, as_json: bool, verb: str) -> None:
    from cloudedge.hub import Ref, is_version, plan_copy, resolve  # noqa: PLC0415 - slow to import
    from cloudedge.hub import copy as copy_bundle  # noqa: PLC0415
    from cloudedge.io import who  # noqa: PLC0415

    limits = configuration().limits
    ref = Ref.parse(text)
    manifest = source.read_manifest(ref.name, resolve(source, ref).digest)
    total = sum(blob.size for blob in manifest.blobs)
    if total > limits.max_bundle:
        raise InputError(
            f"{ref} has {size(total)}, over limits.max_bundle ({size(limits.max_bundle)})",
            hint="Raise `limits.max_bundle` in cloudedge.yaml if this size is intended.",
        )
    version = manifest.annotations.get(_VERSION_ANNOTATION, "")
    if dry_run:
        plan = plan_copy(source, target, ref.name, manifest.digest, jobs=limits.transfer_jobs)
    else:
        with progress_bar(f"{verb.removesuffix('ed')}ing {ref}") as bar:
            plan = copy_bundle(
                source,
                target,
                ref.name,
                manifest.digest,
                tags=[*([version] if is_version(version) else []), *tags],
                by=who(),
                at=rfc3339(SystemClock().now()),
                jobs=limits.transfer_jobs,
                progress=bar,
                planned=lambda plan: bar.expect(plan.bytes_missing),
            )
    _report_copy(plan, f"{ref.name}:{version}", target, as_json=as_json, verb=f"would have {verb}" if dry_run else verb)


def _report_copy(plan: CopyPlan, what: str, target: Hub, *, as_json: bool, verb: str) -> None:
    if as_json:
        json_out(
            {
                "ref": what,
                "digest": plan.manifest.digest,
                "hub": target.url,
                "bytes_sent": plan.bytes_missing,
                "bytes_total": plan.bytes_total,
                "blobs_sent": len(plan.missing),
                "blobs_present": len(plan.present),
            }
        )
        return
    typer.echo(f"{what} {plan.manifest.digest}")
    say("{}: {} of {} to {}", verb, size(plan.bytes_missing), size(plan.bytes_total), target.url)


@app.command("list")
def list_command(
    hub: str = HUB,
    name: str = typer.Option("", "--name", help="Only this name, with all its versions and tags."),
    local: Path = LOCAL,
    as_json: bool = JSON,
) -> None:
    """List bundles: names with their newest version, or all versions and tags of one name."""
    from cloudedge.hub import is_version, newest  # noqa: PLC0415 - slow to import

    opened = _any_hub(hub, local)
    names = [name] if name else opened.names()
    found = {each: [e for e in opened.tags(each) if e.is_current and not e.tag.endswith(".sig")] for each in names}
    if as_json:
        json_out({each: [_entry_json(e) for e in entries] for each, entries in found.items()})
    elif name:
        rows = [(f"{name}:{e.tag}", e.target.digest, e.since, e.by) for e in sorted(found[name], key=lambda e: e.tag)]
        table_out(("reference", "digest", "since", "by"), rows)
    else:
        summary = []
        for each, entries in found.items():
            last = newest(entries)
            tags = ", ".join(sorted(e.tag for e in entries if not is_version(e.tag)))
            versions = sum(is_version(e.tag) for e in entries)
            summary.append((each, last.tag if last else "", versions, tags))
        table_out(("name", "newest", "versions", "tags"), summary)


@app.command()
def show(ref: str = REF, hub: str = HUB, local: Path = LOCAL, as_json: bool = JSON) -> None:
    """Show a bundle's manifest: its layers, their sizes and digests, and the tags that point at it."""
    from cloudedge.hub import Ref, resolve  # noqa: PLC0415 - slow to import

    opened = _any_hub(hub, local)
    parsed = Ref.parse(ref)
    manifest = opened.read_manifest(parsed.name, resolve(opened, parsed).digest)
    tags = sorted(e.tag for e in opened.tags(parsed.name) if e.is_current and e.target.digest == manifest.digest)
    if as_json:
        json_out({"name": parsed.name, "tags": tags, **_manifest_json(manifest)})
        return
    typer.echo(f"{parsed.name} {manifest.digest} {size(sum(b.size for b in manifest.blobs))}")
    typer.echo(f"tags: {', '.join(tags)}")
    table_out(
        ("layer", "size", "digest"),
        [
            (_layer_name(layer.annotations, layer.media_type), size(layer.size), layer.digest)
            for layer in manifest.layers
        ],
    )


@app.command()
def tag(
    ref: str = REF,
    tag: str = typer.Argument(..., help="The tag, such as prod; versions are set by pack and push."),
    hub: str = HUB,
    expect: str = typer.Option("", metavar="DIGEST|none", help="Move it only if it points at this digest now."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Point a tag at a bundle. Its history records who moved it, when and from where."""
    from cloudedge.hub import ANY, Ref, parse_digest, resolve  # noqa: PLC0415 - slow to import
    from cloudedge.io import who  # noqa: PLC0415

    opened = _any_hub(hub, local)
    parsed = Ref.parse(ref)
    target = resolve(opened, parsed)
    if dry_run:
        say("would point {}:{} at {}", parsed.name, tag, target.digest)
        return
    expected = ANY if not expect else None if expect == "none" else parse_digest(expect)
    entry = opened.move_tag(parsed.name, tag, target, by=who(), at=rfc3339(SystemClock().now()), expected=expected)
    if as_json:
        json_out(_entry_json(entry) if entry else None)
    else:
        typer.echo(f"{parsed.name}:{tag} {target.digest}")


@app.command()
def untag(
    ref: str = typer.Argument(..., metavar="NAME:TAG", help="The tag to remove; the bundle stays until gc."),
    hub: str = HUB,
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Remove a tag or a version. The bundle itself goes with a later gc, if nothing else points at it."""
    from cloudedge.hub import Ref, resolve  # noqa: PLC0415 - slow to import
    from cloudedge.io import who  # noqa: PLC0415

    parsed = Ref.parse(ref)
    if not parsed.tag:
        raise typer.BadParameter("expected NAME:TAG or NAME:VERSION", param_hint="NAME:TAG")
    opened = _any_hub(hub, local)
    found = resolve(opened, parsed)
    if dry_run:
        say("would remove {} (at {})", parsed, found.digest)
        return
    opened.move_tag(parsed.name, parsed.tag, None, by=who(), at=rfc3339(SystemClock().now()))
    if as_json:
        json_out({"ref": str(parsed), "digest": found.digest})
    else:
        typer.echo(f"removed {parsed} (was {found.digest})")


@app.command()
def history(
    name: str = typer.Argument(..., metavar="NAME[:TAG]", help="The bundle's name, and a tag of it."),
    hub: str = HUB,
    local: Path = LOCAL,
    as_json: bool = JSON,
) -> None:
    """Show the history of each tag: its bundles, their times, and the users who moved it."""
    from cloudedge.hub import Ref  # noqa: PLC0415 - slow to import

    parsed = Ref.parse(name)
    entries = [e for e in _any_hub(hub, local).tags(parsed.name) if parsed.tag in ("", e.tag)]
    entries.sort(key=lambda e: (e.tag, e.seq))
    if as_json:
        json_out([_entry_json(e) for e in entries])
        return
    table_out(
        ("tag", "digest", "since", "by", "until", "ended by"),
        [(e.tag, e.target.digest, e.since, e.by, e.until or "now", e.ended_by) for e in entries],
    )


@app.command()
def gc(
    hub: str = HUB,
    keep: str = typer.Option("", metavar="30d", help="Time that untagged bundles stay; limits.history by default."),
    local: Path = LOCAL,
    yes: bool = typer.Option(False, "--yes", "-y", help="Skip the confirmation."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Delete everything without a reference: no tag, no recent history, no release. Asks first."""
    from cloudedge.config import Limits  # noqa: PLC0415
    from cloudedge.hub import collect  # noqa: PLC0415 - slow to import

    opened = _any_hub(hub, local)
    limits = Limits.model_validate({"history": keep}) if keep else configuration().limits
    now = SystemClock().now()
    plan = collect(opened, now=now, retention=limits.history, dry_run=True)
    if as_json:
        json_out(
            {
                "hub": opened.url,
                "dry_run": dry_run,
                "kept": [{"name": k.name, "digest": k.digest, "reasons": k.reasons} for k in plan.kept],
                "deleted": [{"digest": d.digest, "size": d.size} for d in plan.delete],
                "bytes_freed": plan.bytes_freed,
            }
        )
    else:
        table_out(("", "bundle", "why"), [("keep", f"{k.name}@{k.digest}", "; ".join(k.reasons)) for k in plan.kept])
        table_out(("", "blob", "size"), [("delete", d.digest, size(d.size)) for d in plan.delete])
        say("{}: {} to free in {} blobs", opened.url, size(plan.bytes_freed), len(plan.delete))
    if dry_run or not (plan.delete or plan.forget):
        return
    if not yes:
        typer.confirm("Delete them?", abort=True, err=True)
    done = collect(opened, now=now, retention=limits.history, dry_run=False)
    say("freed {}", size(done.bytes_freed))


def _any_hub(name: str | None, local: Path | None) -> Hub:
    """Open the named hub, else the local one."""
    return named_hub(name, configuration()) if name else local_hub(local)


def _entry_json(entry: TagEntry) -> dict[str, Any]:
    return {
        "tag": entry.tag,
        "digest": entry.target.digest,
        "seq": entry.seq,
        "since": entry.since,
        "by": entry.by,
        "until": entry.until or None,
        "ended_by": entry.ended_by or None,
    }


def _manifest_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "digest": manifest.digest,
        "artifact_type": manifest.artifact_type,
        "annotations": dict(manifest.annotations),
        "layers": [layer.to_json() for layer in manifest.layers],
    }


def _layer_name(annotations: Any, media_type: str) -> str:
    path, table = annotations.get("org.cncf.model.filepath"), annotations.get("io.cloudedge.table.name")
    return path or (f"table {table}" if table else media_type)
