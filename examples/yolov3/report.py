"""The report: one page that shows what happened, made from the data of ``report.json`` and one picture."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_WIDTH, _LEFT, _RIGHT, _STRIP = 1040, 170, 20, 18
_COLOURS = ("#4477aa", "#228833", "#ee6677")
_TICKS = (1, 2, 5, 10, 20, 30, 60)
_INTRODUCTION = """A detector was trained, packed and signed, and released to three edge nodes through a control plane
that behaves like BIE's. Version 2 went out in two waves while one node was cut off; version 3 was broken, failed its
probe on the first node and was taken back. All the time, one client per node kept asking."""
_TRAVELLED = "Against the zip of the whole model, which a node downloads otherwise."
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:32px auto;padding:0 20px;color:#1b2430;background:#fff}
h1{font-size:27px;margin:0 0 4px}h2{font-size:18px;margin:38px 0 6px}p{margin:4px 0 10px;color:#475569}
.figures{display:flex;gap:14px;flex-wrap:wrap;margin:18px 0}.figure{flex:1;min-width:150px;border:1px solid #d5dce5;
border-radius:8px;padding:10px 14px}.figure b{display:block;font-size:25px;color:#0f172a}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid #e5eaf0}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
svg,img{width:100%;height:auto;display:block}img{image-rendering:pixelated}
.key{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 5px 0 14px;vertical-align:-1px}
text{font:11px system-ui,sans-serif;fill:#475569}.axis{stroke:#cbd5e1}.mark{stroke:#0f172a;stroke-dasharray:3 3}
code{background:#f1f5f9;padding:1px 5px;border-radius:4px}.bad{color:#b91c1c}.good{color:#15803d}
"""


def render(report: Mapping[str, Any], picture: str) -> str:
    """Write the page.

    Args:
        report: The data.
        picture: What was found, a PNG in base64.
    """
    colours = {v["pin"]: _COLOURS[i % len(_COLOURS)] for i, v in enumerate(report["versions"])}
    keys = "".join(f"{_key(colours[v['pin']])}{escape(v['bundle'])}" for v in report["versions"])
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>cloudedge: a detector on three edge nodes</title>",
        f"<style>{_STYLE}</style><h1>A detector on three edge nodes</h1><p>{_INTRODUCTION}</p>",
        _figures(report),
        "<h2>What the first node found</h2>",
        f"<img alt='pictures with boxes' src='data:image/png;base64,{picture}'>",
        f"<h2>Which version each node answered with</h2><p>{keys}{_key('#cbd5e1')}no answer</p>",
        _strips(report, colours),
        "<h2>Rollouts</h2>",
        _rollouts(report),
        f"<h2>What travelled to each node</h2><p>{_TRAVELLED}</p>",
        _travelled(report),
        "<h2>Versions</h2>",
        _versions(report),
        "</html>",
    ]
    return "\n".join(parts)


def _figures(report: Mapping[str, Any]) -> str:
    first, second = report["versions"][:2]
    update = report["fetched_bytes"].get(second["bundle"], {})
    most = max(update.values(), default=0) / second["zip_bytes"]
    figures = [
        (f"{first['map50']:.3f}", "mAP@0.5 of version 1"),
        (f"{second['map50']:.3f}", "of version 2"),
        (f"{report['answered']:,}", "requests answered meanwhile"),
        (f"{report['failed']}", "failed"),
        (f"{most:.0%}", "of the zip travels for version 2"),
    ]
    return "<div class=figures>" + "".join(f"<div class=figure><b>{n}</b>{w}</div>" for n, w in figures) + "</div>"


def _strips(report: Mapping[str, Any], colours: Mapping[str, str]) -> str:
    nodes, events = report["nodes"], report["events"]
    end = max([1.0, *(span["to"] for spans in nodes.values() for span in spans)])
    top = 16 * len(events) + 10
    height = top + len(nodes) * (_STRIP + 6)

    def x(t: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * t / end

    drawn = []
    for row, (name, spans) in enumerate(nodes.items()):
        y = top + row * (_STRIP + 6)
        drawn.append(f"<text x={_LEFT - 8} y={y + 13} text-anchor=end>{escape(name)}</text>")
        drawn += [
            f"<rect x={x(s['from']):.1f} y={y} width={max(0.5, x(s['to']) - x(s['from'])):.1f} height={_STRIP} "
            f"fill='{colours.get(s['pin'], '#cbd5e1')}' />"
            for s in spans
        ]
    for row, event in enumerate(events):
        at, y = x(event["t"]), 16 * row + 6
        side, anchor = (-5, "end") if at > _WIDTH * 0.7 else (5, "start")
        drawn.append(f"<line class=mark x1={at:.1f} x2={at:.1f} y1={y} y2={height} />")
        drawn.append(f"<text x={at + side:.1f} y={y + 8} text-anchor={anchor}>{escape(event['what'])}</text>")
    step = next((s for s in _TICKS if end / s <= 12), _TICKS[-1])  # noqa: PLR2004 - as many as can be read
    drawn += [
        f"<text x={x(t):.1f} y={height + 14} text-anchor=middle>{t} s</text>" for t in range(0, int(end) + 1, step)
    ]
    axis = f"<line class=axis x1={_LEFT} x2={_WIDTH - _RIGHT} y1={height} y2={height} />"
    return f"<svg viewBox='0 0 {_WIDTH} {height + 20}'>{''.join(drawn)}{axis}</svg>"


def _rollouts(report: Mapping[str, Any]) -> str:
    rows = ["<tr><th>rollout<th>bundle<th>outcome<th>waves<th class=n>took"]
    for rollout in report["rollouts"]:
        style = "good" if rollout["state"] == "done" else "bad"
        why = f"<br><small>{escape(rollout['why'])}</small>" if rollout["why"] else ""
        waves = " → ".join(", ".join(map(escape, wave)) for wave in rollout["waves"])
        rows.append(
            f"<tr><td>{rollout['number']}<td>{escape(rollout['bundle'])}"
            f"<td class={style}>{escape(rollout['state'])}{why}<td>{waves}<td class=n>{rollout['seconds']:.1f} s"
        )
    return f"<table>{''.join(rows)}</table>"


def _travelled(report: Mapping[str, Any]) -> str:
    rows = ["<tr><th>bundle<th>node<th class=n>downloaded<th class=n>zip<th class=n>share"]
    for version in report["versions"]:
        for node, count in sorted(report["fetched_bytes"].get(version["bundle"], {}).items()):
            rows.append(
                f"<tr><td>{escape(version['bundle'])}<td>{escape(node)}<td class=n>{count / 1e3:,.0f} kB"
                f"<td class=n>{version['zip_bytes'] / 1e3:,.0f} kB<td class=n>{count / version['zip_bytes']:.0%}"
            )
    return f"<table>{''.join(rows)}</table>"


def _versions(report: Mapping[str, Any]) -> str:
    rows = ["<tr><th>bundle<th>pin<th class=n>mAP@0.5"]
    for version in report["versions"]:
        precision = "broken" if version["map50"] is None else f"{version['map50']:.3f}"
        rows.append(
            f"<tr><td>{escape(version['bundle'])}<td><code>{escape(version['pin'])}</code><td class=n>{precision}"
        )
    return f"<table>{''.join(rows)}</table>"


def _key(colour: str) -> str:
    return f"<span class=key style='background:{colour}'></span>"
