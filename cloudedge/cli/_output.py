"""Output of commands: data to standard output, messages and progress to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = [
    "DRY_RUN",
    "JSON",
    "ProgressBar",
    "json_line",
    "json_out",
    "progress_bar",
    "renamed_option",
    "say",
    "size",
    "table_out",
    "yaml_out",
]

JSON = typer.Option(False, "--json", help="Print data as JSON, for programs.")
DRY_RUN = typer.Option(False, "--dry-run", help="Show what would be done and change nothing.")


def say(message: str, *facts: object) -> None:
    """Print a message for the user; each `{}` in it stands for a fact, inserted literally."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(message.format(*(escape(str(fact)) for fact in facts)))


def renamed_option(old: str, new: str) -> Any:
    """Make the hidden option that takes the value of one that had another name before; using it warns.

    The command declares a parameter for it that it does not read.
    """

    def take(context: typer.Context, value: str | None) -> None:
        if value is not None:
            say("[yellow]note[/]: {} is now {}", old, new)
            name = new.lstrip("-").replace("-", "_")
            context.default_map = {**(context.default_map or {}), name: value}

    # Eager: it is read before the option that takes its value as a default.
    return typer.Option(None, old, hidden=True, is_eager=True, expose_value=False, callback=take)


def json_out(value: Any, *, line: bool = False) -> None:
    """Print data for programs; on one line if more follows."""
    typer.echo(json.dumps(value, indent=None if line else 2, ensure_ascii=False))


def json_line(value: Any) -> None:
    """Print data for programs that read a line at a time, without delay."""
    typer.echo(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()


def yaml_out(*documents: Any) -> None:
    """Print documents as YAML, their fields in the given order."""
    import yaml  # noqa: PLC0415 - not needed for --help

    typer.echo(yaml.safe_dump_all(documents, sort_keys=False), nl=False)


def table_out(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print a table on a terminal, and plain tab-separated lines elsewhere."""
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(str(cell) for cell in row))
        return
    table = Table(title=title or None, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in {"size", "rows", "bytes"} else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    Console(highlight=False).print(table)


def size(count: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - that is what kilo means
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class ProgressBar:
    """Counts transferred bytes; shown only on a terminal."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=None)

    def expect(self, total: int) -> None:
        """Set the total number of bytes."""
        self._progress.update(self._task, total=total)

    def __call__(self, settled: int) -> None:
        self._progress.advance(self._task, settled)


@contextmanager
def progress_bar(label: str, total: int | None = None) -> Iterator[ProgressBar]:
    """Show bytes, speed and time left during a long transfer."""
    from rich.progress import (  # noqa: PLC0415 - not needed for --help
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        bar = ProgressBar(progress, label)
        if total is not None:
            bar.expect(total)
        yield bar
