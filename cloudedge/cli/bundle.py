"""``cloudedge bundle``: pack, inspect, compare, verify and unpack bundles in the local hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from cloudedge.cli._context import LOCAL, configuration, local_hub, read_option
from cloudedge.cli._output import DRY_RUN, JSON, json_out, progress_bar, say, size, table_out
from cloudedge.errors import InputError

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle, BundleDiff, Lineage, PackPlan

__all__ = ["app", "describe", "pair"]

app = typer.Typer(no_args_is_help=True, help="Pack, inspect, compare, sign and unpack bundles in the local hub.")

REF = typer.Argument(..., metavar="REF", help="NAME:VERSION, NAME:TAG, NAME (newest) or NAME@sha256:DIGEST.")


@app.command()
def pack(
    folder: Path = typer.Argument(..., metavar="DIR", help="The dense files, taken as they are."),
    name: str = typer.Option(..., help="The bundle's name, such as ctr."),
    version: str = typer.Option("auto", help="An integer, major.minor.patch, or auto for the next one."),
    sparse: list[str] = typer.Option(
        [], metavar="TABLE=FILE", help="A sparse table: .safetensors, .npz, .npy or .seq."
    ),
    signature: Path = typer.Option(None, help="JSON: {feed: [{name, alias, dtype, shape}], fetch: [...]}."),
    probe: list[Path] = typer.Option([], help="JSON: a request {feed, expect, tolerance}, or a list of them."),
    dataset: str = typer.Option("", help="Lineage: the training data."),
    job: str = typer.Option("", help="Lineage: the training job."),
    code: str = typer.Option("", help="Lineage: the source revision."),
    metric: list[str] = typer.Option([], metavar="NAME=VALUE", help="Lineage: such as auc=0.79."),
    framework_version: str = typer.Option(
        "", help="The Paddle version it was trained with; the installed one by default."
    ),
    parent: str = typer.Option("", metavar="REF", help="Store only the table rows that differ from this bundle's."),
    on_duplicate: str = typer.Option(
        "refuse", metavar="refuse|last", help="Refuse a table with a repeated key, or keep the last of its rows."
    ),
    copy: bool = typer.Option(False, help="Copy large files instead of linking them."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Pack a trained model into one immutable bundle.

    Example: cloudedge bundle pack out/ctr --name ctr --sparse dict=emb.npz --metric auc=0.79 --parent ctr:2
    """
    from cloudedge.bundle import Bundle, plan_pack  # noqa: PLC0415 - numpy is not needed for --help
    from cloudedge.bundle import pack as pack_plan  # noqa: PLC0415

    if on_duplicate not in ("refuse", "last"):
        raise typer.BadParameter("choose refuse or last", param_hint="--on-duplicate")
    policy: Literal["refuse", "last"] = "last" if on_duplicate == "last" else "refuse"
    hub, config = local_hub(local), configuration()
    plan = plan_pack(
        folder,
        name=name,
        version=version,
        sparse=dict(pair(item, "--sparse") for item in sparse),
        signature=_read_signature(signature),
        probes=_read_probes(probe),
        lineage=_lineage(dataset, job, code, metric),
        framework_version=framework_version,
        on_duplicate=policy,
        parent=Bundle.open(parent, hub=hub) if parent else None,
        copy=copy,
    )
    for note in plan.notes:
        say("[yellow]note[/]: {}", note)
    if dry_run:
        _show_plan(plan, as_json=as_json)
        return
    tables = sum(rows.rows * (8 + rows.kind.row_bytes) for rows in plan.tables.values())
    with progress_bar(f"packing {name}", plan.dense_bytes + tables) as bar:
        packed = pack_plan(hub, plan, limits=config.limits, progress=bar)
    bundle = Bundle(hub, name, packed.manifest)
    for file in packed.linked:
        say("[yellow]note[/]: {} is linked, not copied: write new versions to new files, or pack with --copy", file)
    if as_json:
        json_out(describe(bundle))
    else:
        typer.echo(f"{name}:{packed.version} {bundle.digest}")
        for table, done in packed.tables.items():
            how = "delta" if done.is_delta else "base"
            say("  table {}: {} rows, {} as {}", table, f"{done.rows:,}", size(done.shipped_bytes), how)
        say("next: cloudedge hub push {}:{} HUB", name, packed.version)


@app.command()
def inspect(ref: str = REF, local: Path = LOCAL, as_json: bool = JSON) -> None:
    """Show the contents of a bundle: files, tables, signature, probes, lineage, needs."""
    from cloudedge.bundle import Bundle  # noqa: PLC0415

    bundle = Bundle.open(ref, hub=local_hub(local))
    value = describe(bundle)
    if as_json:
        json_out(value)
        return
    typer.echo(f"{bundle.name}:{bundle.version} {bundle.digest} {size(bundle.size_bytes)}")
    rows: list[tuple[object, ...]] = [("file", path, size(f["size"]), "") for path, f in value["files"].items()]
    for name, table in value["tables"].items():
        shape = f"{table['rows']:,} rows, {table['type']}, {table['deltas']} deltas"
        rows.append(("table", name, size(table["size"]), shape))
    table_out(("part", "name", "size", "what"), rows)
    for part in ("signature", "lineage", "needs"):
        for key, fact in value[part].items():
            typer.echo(f"{part}.{key}: {fact}")
    typer.echo(f"probes: {len(value['probes'].get('requests', []))} requests")


@app.command()
def verify(
    ref: str = REF,
    key: Path = typer.Option(None, help="A public key: also require a signature by its private half."),
    deep: bool = typer.Option(False, help="Also read every table row and compare the rows' checksum."),
    local: Path = LOCAL,
    as_json: bool = JSON,
) -> None:
    """Check every byte of a bundle against its digest, and its signature if a key is given."""
    from cloudedge.bundle import Bundle, check_signature  # noqa: PLC0415
    from cloudedge.hub import Ref  # noqa: PLC0415

    bundle = Bundle.open(ref, hub=local_hub(local))
    with progress_bar(f"verifying {ref}", sum(blob.size for blob in bundle.manifest.blobs)) as bar:
        bundle.verify(deep=deep, progress=bar)
    if key is not None:
        check_signature(bundle, key, tag=Ref.parse(ref).tag)
    if as_json:
        json_out({"ref": f"{bundle.name}:{bundle.version}", "digest": bundle.digest, "signed": key is not None})
    else:
        signed = f", signed by {key}" if key else ""
        typer.echo(f"ok {bundle.name}:{bundle.version} {bundle.digest} ({size(bundle.size_bytes)}{signed})")


@app.command("diff")
def diff_command(
    before: str = typer.Argument(..., metavar="A", help="The bundle before."),
    after: str = typer.Argument(..., metavar="B", help="The bundle after."),
    local: Path = LOCAL,
    as_json: bool = JSON,
) -> None:
    """Show the differences from A to B: files, table rows, and the bytes to ship to a place that has A."""
    from cloudedge.bundle import Bundle, diff  # noqa: PLC0415

    hub = local_hub(local)
    a, b = Bundle.open(before, hub=hub), Bundle.open(after, hub=hub)
    found = diff(a, b)
    if as_json:
        json_out(_diff_json(found))
        return
    changes = {"+": found.added, "-": found.removed, "~": found.changed}
    rows: list[tuple[object, ...]] = [
        (sign, path, size(n), "") for sign, files in changes.items() for path, n in files.items()
    ]
    for name, t in found.tables.items():
        what = f"{t.added:,} added, {t.changed:,} changed, {t.removed:,} removed of {t.rows_before:,}"
        rows.append(("=" if t.is_same else "~", f"table {name}", size(t.delta_bytes), what))
    table_out(("", "part", "size", "rows"), rows)
    typer.echo(f"to ship: {size(found.bytes_to_ship)} of {size(b.size_bytes)}")


@app.command()
def unpack(
    ref: str = REF,
    folder: Path = typer.Argument(..., metavar="DIR", help="A folder that does not exist yet."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Write a bundle's files to a folder: dense files at the top, tables and descriptions in .bundle/."""
    from cloudedge.bundle import Bundle  # noqa: PLC0415
    from cloudedge.bundle import unpack as unpack_bundle  # noqa: PLC0415

    bundle = Bundle.open(ref, hub=local_hub(local))
    files = {member.path: member.size for member in bundle.members()}
    if not dry_run:
        with progress_bar(f"unpacking {ref}", sum(files.values())) as bar:
            unpack_bundle(bundle, folder, progress=bar)
    if as_json:
        json_out({"folder": str(folder.absolute()), "digest": bundle.digest, "files": files})
    elif dry_run:
        table_out(("file", "size"), [(path, size(n)) for path, n in files.items()])
    else:
        typer.echo(folder.absolute())


@app.command()
def export(
    ref: str = REF,
    zip_file: Path = typer.Option(..., "--zip", metavar="FILE", help="The zip to write; it must not exist yet."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Write a bundle as a zip with its content at the top level; the same bundle always gives the same bytes."""
    from cloudedge.bundle import Bundle, export_zip  # noqa: PLC0415
    from cloudedge.io import digest_file  # noqa: PLC0415

    bundle = Bundle.open(ref, hub=local_hub(local))
    if dry_run:
        say("would write {} with {} files", zip_file, sum(1 for _ in bundle.members()))
        return
    with progress_bar(f"exporting {ref}", bundle.size_bytes) as bar:
        path = export_zip(bundle, zip_file, progress=bar)
    md5 = digest_file(path, sha256=False, md5=True).md5
    if as_json:
        json_out({"file": str(path), "size": path.stat().st_size, "md5": md5, "digest": bundle.digest})
    else:
        typer.echo(f"{path} md5:{md5}")


@app.command()
def sign(
    ref: str = REF,
    key: Path = typer.Option(..., help="The private key, from `cloudedge key new`."),
    expires: str = typer.Option("", metavar="TIME", help="How long the signature counts, such as 30d; else for good."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Sign a bundle; the signature travels with it and `cosign verify --key` accepts it.

    Example: cloudedge bundle sign ctr:4 --key team.key --expires 30d
    """
    from cloudedge.bundle import Bundle, sign_bundle  # noqa: PLC0415
    from cloudedge.cli.key import passphrase  # noqa: PLC0415
    from cloudedge.config import Duration  # noqa: PLC0415

    bundle = Bundle.open(ref, hub=local_hub(local))
    lifetime = read_option(Duration, expires, "--expires") if expires else None
    if dry_run:
        say("would sign {} with {}", bundle.digest, key)
        return
    sign_bundle(bundle, key, passphrase(key), expires=lifetime)
    if as_json:
        json_out({"ref": f"{bundle.name}:{bundle.version}", "digest": bundle.digest, "key": str(key)})
    else:
        typer.echo(f"signed {bundle.name}:{bundle.version} {bundle.digest}")


def pair(text: str, option: str) -> tuple[str, str]:
    """Parse the NAME=VALUE of an option."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"expected NAME=VALUE, found {text!r}", param_hint=option)
    return name, value


def _read_json(path: Path) -> Any:
    import json  # noqa: PLC0415

    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def _read_signature(path: Path | None) -> Any:
    from cloudedge.bundle import Signature, read_part  # noqa: PLC0415

    return read_part(Signature, path.read_bytes(), str(path)) if path else Signature()


def _read_probes(paths: list[Path]) -> Any:
    from cloudedge.bundle import Probes, parse_part  # noqa: PLC0415

    requests = []
    for path in paths:
        value = _read_json(path)
        requests += value if isinstance(value, list) else [value]
    return parse_part(Probes, {"requests": requests}, "probes")


def _lineage(dataset: str, job: str, code: str, metrics: list[str]) -> Lineage:
    from cloudedge.bundle import Lineage, parse_part  # noqa: PLC0415

    measured = dict(pair(item, "--metric") for item in metrics)
    return parse_part(Lineage, {"dataset": dataset, "job": job, "code": code, "metrics": measured}, "lineage")


def _show_plan(plan: PackPlan, *, as_json: bool) -> None:
    files = {file: (plan.folder / file).stat().st_size for file in plan.files}
    tables = {name: {"rows": t.rows, "type": str(t.kind)} for name, t in plan.tables.items()}
    if as_json:
        json_out({"name": plan.name, "version": plan.version, "files": files, "tables": tables})
        return
    table_out(
        ("part", "name", "size", "what"),
        [
            *(("file", file, size(n), "") for file, n in files.items()),
            *(("table", name, "", f"{t['rows']:,} rows, {t['type']}") for name, t in tables.items()),
        ],
    )
    say("would pack {}:{}, {} of dense files", plan.name, plan.version, size(plan.dense_bytes))


def describe(bundle: Bundle) -> dict[str, Any]:
    """Return the contents of a bundle for ``--json``."""
    return {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest,
        "size": bundle.size_bytes,
        "files": {p: {"size": f.size, "digest": f.digest} for p, f in bundle.dense_layers.items()},
        "tables": {
            name: {
                "rows": len(table),
                "type": str(table.kind),
                "size": sum(layer.size for layer in bundle.table_layers[name]),
                "deltas": len(bundle.table_layers[name]) - 1,
                "checksum": table.recorded_checksum,
            }
            for name, table in bundle.sparse.items()
        },
        "signature": bundle.signature.model_dump(mode="json"),
        "probes": bundle.probes.model_dump(mode="json"),
        "lineage": bundle.lineage.model_dump(mode="json"),
        "needs": bundle.needs.model_dump(mode="json"),
    }


def _diff_json(found: BundleDiff) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    return {**asdict(found), "bytes_to_ship": found.bytes_to_ship}
