"""The report: one page that shows what happened, and the same figures as data.

`render` takes the data of ``report.json`` and returns the page; it needs nothing else, and neither does the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_WIDTH, _LEFT, _RIGHT = 1040, 150, 20
_TICKS, _LONGEST_TICK = 12, 600
_COLOURS = ("#4477aa", "#ee8866", "#228833", "#aa3377", "#66ccee")
_INTRODUCTION = """A model has a dense net and a table of embeddings, each on servers of its own. Here both were
replaced, one server of each kind was killed, a broken version was tried, and everything was rolled back, under constant
load. Every answer was compared with what the whole trained model answers."""
_STRIPS = """One strip per process: two shards of the table with two replicas each, and two serving replicas. Grey: it
does not answer, or has nothing to answer with."""
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:32px auto;padding:0 20px;color:#1b2430;background:#fff}
h1{font-size:27px;margin:0 0 4px}h2{font-size:18px;margin:38px 0 6px}p{margin:4px 0 10px;color:#475569}
.figures{display:flex;gap:14px;flex-wrap:wrap;margin:18px 0}.figure{flex:1;min-width:150px;border:1px solid #d5dce5;
border-radius:8px;padding:10px 14px}.figure b{display:block;font-size:25px;color:#0f172a}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid #e5eaf0}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}
.key{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 5px 0 14px;vertical-align:-1px}
text{font:11px system-ui,sans-serif;fill:#475569}.axis{stroke:#cbd5e1;stroke-width:1}
.mark{stroke:#0f172a;stroke-width:1;stroke-dasharray:3 3}
.p50{fill:none;stroke:#4477aa;stroke-width:1.6}.p99{fill:none;stroke:#cc3311;stroke-width:1.6}
code{background:#f1f5f9;padding:1px 5px;border-radius:4px}.bad{color:#b91c1c}.good{color:#15803d}
"""


def render(report: Mapping[str, Any]) -> str:
    """Write the page."""
    end = max(1.0, *(bucket["t"] for bucket in report["timeline"]), *(event["t"] for event in report["events"]))
    chart = _Chart(end, report["events"], {v["pin"]: i for i, v in enumerate(report["versions"])})
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>cloudedge: three releases of a click model</title>",
        f"<style>{_STYLE}</style><h1>Three releases of a click model, while it was being used</h1>",
        f"<p>{_INTRODUCTION}</p>",
        _figures(report),
        "<h2>Answers per second, by the version that gave them</h2>",
        _legend(report, chart),
        chart.stacked(report["timeline"]),
        f"<h2>Latency</h2><p>{_key('#4477aa')}half of the requests are faster{_key('#cc3311')}99 % are faster (ms)</p>",
        chart.lines(report["timeline"], {"p50_ms": "p50", "p99_ms": "p99"}),
        f"<h2>Which version each server answers with</h2><p>{_STRIPS}</p>",
        chart.strips(report["places"]),
        "<h2>Releases</h2>",
        _releases(report),
        "<h2>Versions</h2>",
        _versions(report),
        "</html>",
    ]
    return "\n".join(parts)


class _Chart:
    """Draws things over one time axis."""

    def __init__(self, end: float, events: Sequence[Mapping[str, Any]], rank: Mapping[str, int]) -> None:
        self.end, self.events, self.rank = end, events, rank

    def x(self, t: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(t, self.end) / self.end

    def colour(self, pin: str) -> str:
        return _COLOURS[self.rank[pin] % len(_COLOURS)] if pin in self.rank else "#cbd5e1"

    def frame(self, height: int, content: Iterable[str], *, labels: bool = False) -> str:
        top = 14 + (16 * len(self.events) if labels else 0)
        marks = []
        for row, event in enumerate(self.events):
            x = self.x(event["t"])
            start = 16 * row + 6 if labels else 0
            marks.append(f"<line class=mark x1={x:.1f} x2={x:.1f} y1={start} y2={top + height} />")
            if labels:
                right = x > _WIDTH * 0.7
                at, anchor = (x - 5, "end") if right else (x + 5, "start")
                marks.append(f"<text x={at:.1f} y={start + 8} text-anchor={anchor}>{escape(event['what'])}</text>")
        step = next(
            s
            for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, _LONGEST_TICK)
            if self.end / s <= _TICKS or s == _LONGEST_TICK
        )
        ticks = [
            f"<text x={self.x(t):.1f} y={top + height + 14} text-anchor=middle>{t} s</text>"
            for t in range(0, int(self.end) + 1, step)
        ]
        axis = f"<line class=axis x1={_LEFT} x2={_WIDTH - _RIGHT} y1={top + height} y2={top + height} />"
        body = f"<g transform='translate(0 {top})'>{''.join(content)}</g>"
        return f"<svg viewBox='0 0 {_WIDTH} {top + height + 20}'>{body}{axis}{''.join(ticks)}{''.join(marks)}</svg>"

    def scale(self, highest: float, height: int, unit: str) -> str:
        return (
            f"<text x={_LEFT - 8} y=8 text-anchor=end>{highest:,.0f} {unit}</text>"
            f"<text x={_LEFT - 8} y={height} text-anchor=end>0</text>"
        )

    def stacked(self, timeline: Sequence[Mapping[str, Any]], height: int = 150) -> str:
        highest = max([1.0, *(sum(b["qps"].values()) for b in timeline)])
        content = [self.scale(highest, height, "/s")]
        for here, after in zip(timeline, [*timeline[1:], None], strict=True):
            width = max(0.6, self.x(after["t"] if after else self.end) - self.x(here["t"]) + 0.3)
            base = float(height)
            for pin in sorted(here["qps"], key=lambda pin: self.rank.get(pin, 99)):
                tall = height * here["qps"][pin] / highest
                base -= tall
                content.append(
                    f"<rect x={self.x(here['t']):.1f} y={base:.1f} width={width:.1f} height={tall:.1f} "
                    f"fill='{self.colour(pin)}' />"
                )
        return self.frame(height, content, labels=True)

    def lines(self, timeline: Sequence[Mapping[str, Any]], series: Mapping[str, str], height: int = 120) -> str:
        highest = max([1.0, *(b[name] for b in timeline for name in series if b[name] is not None)])
        content = [self.scale(highest, height, "ms")]
        for name, style in series.items():
            points = " ".join(
                f"{self.x(b['t']):.1f},{height * (1 - b[name] / highest):.1f}" for b in timeline if b[name] is not None
            )
            content.append(f"<polyline class={style} points='{points}' />")
        return self.frame(height, content)

    def strips(self, places: Mapping[str, Sequence[Mapping[str, Any]]], height: int = 18) -> str:
        content = []
        for row, (name, spans) in enumerate(sorted(places.items())):
            y = row * (height + 6)
            content.append(f"<text x={_LEFT - 8} y={y + 13} text-anchor=end>{escape(name)}</text>")
            for span in spans:
                width = max(0.5, self.x(span["to"]) - self.x(span["from"]))
                content.append(
                    f"<rect x={self.x(span['from']):.1f} y={y} width={width:.1f} height={height} "
                    f"fill='{self.colour(span['pin'])}' />"
                )
        return self.frame(len(places) * (height + 6), content)


def _figures(report: Mapping[str, Any]) -> str:
    figures = [
        (f"{report['requests']:,}", "requests answered"),
        (f"{report['failed_requests']}", "failed"),
        (f"{report['mixed_answers']}", "answers that mixed two versions"),
        (f"{report['max_abs_difference']:.1e}", "largest difference to the whole model"),
        (f"{report['rollback_seconds'] * 1000:.0f} ms", "to roll back"),
    ]
    return "<div class=figures>" + "".join(f"<div class=figure><b>{n}</b>{w}</div>" for n, w in figures) + "</div>"


def _legend(report: Mapping[str, Any], chart: _Chart) -> str:
    return "<p>" + "".join(_key(chart.colour(v["pin"])) + escape(v["bundle"]) for v in report["versions"]) + "</p>"


def _key(colour: str) -> str:
    return f"<span class=key style='background:{colour}'></span>"


def _releases(report: Mapping[str, Any]) -> str:
    head = "<tr><th>release<th>bundle<th>outcome<th class=n>took<th class=n>shipped<th class=n>of<th class=n>p99 before"
    rows = [head + "<th class=n>during<th class=n>after"]
    for number, release in report["releases"].items():
        style = "good" if release["outcome"] == "done" else "bad"
        said = [escape(text) for text in (release["why"], release["note"]) if text]
        why = "".join(f"<br><small>{text}</small>" for text in said)
        rows.append(
            f"<tr><td>{number}<td>{escape(release['bundle'])}<td class={style}>{escape(release['outcome'])}{why}"
            f"<td class=n>{release['seconds']:.2f} s<td class=n>{release['bytes_shipped'] / 1e6:.2f} MB"
            f"<td class=n>{release['bytes_full'] / 1e6:.1f} MB<td class=n>{_ms(release['p99_ms_before'])}"
            f"<td class=n>{_ms(release['p99_ms_during'])}<td class=n>{_ms(release['p99_ms_after'])}"
        )
    return f"<table>{''.join(rows)}</table>"


def _versions(report: Mapping[str, Any]) -> str:
    rows = ["<tr><th>bundle<th>pin<th class=n>AUC as trained<th class=n>AUC as served<th class=n>largest difference"]
    rows += [
        f"<tr><td>{escape(v['bundle'])}<td><code>{escape(v['pin'])}</code><td class=n>{_auc(v['auc_trained'])}"
        f"<td class=n>{_auc(v['auc_served'])}<td class=n>{_small(v['max_abs_difference'])}"
        for v in report["versions"]
    ]
    return f"<table>{''.join(rows)}</table>"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _auc(value: float | None) -> str:
    return "never served" if value is None else f"{value:.4f}"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
