"""`cloudedge edge`: an edge node, and a control plane to try one with."""

from __future__ import annotations

import typer

from cloudedge.cli import edge_lab, edge_node

__all__ = ["app"]

app = typer.Typer(help="Run an edge node, or a control plane to try one with.", no_args_is_help=True)
app.command("lab")(edge_lab.lab)
app.command("node")(edge_node.node)
