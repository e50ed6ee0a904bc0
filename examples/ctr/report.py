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
_GOOD, _BAD, _NEUTRAL = "#15803d", "#b91c1c", "#64748b"
_INTRODUCTION = """<b>cloudedge</b> makes a trained model live on all its servers as one version, or on none. A click
model is two things on different servers: a dense net on serving replicas, and a table of embeddings cut into shards.
Replaced one after the other, as is usual, they answer with the new net on old rows, or with zeros for a shard that
restarts, and nobody sees it. Here both were replaced while requests went on, servers were killed, a broken version
was tried, and all of it was rolled back. Every single answer was compared with what the whole trained model answers:
one that is made of two versions fits none of them."""
_STORY = """The bands in the charts below have these numbers. Each line is one command, or one call from Python."""
_ANSWERS = """A release first loads the new version beside the old one, everywhere, and tries it; then requests move
at once. So the colour changes from one moment to the next, and nothing is missing in between."""
_STRIPS = """One strip per process: two serving replicas (dense), and two shards of the table with two replicas each
(sparse). Grey: it does not answer, or has nothing to answer with."""
_VERSIONS = """AUC says how well a model tells clicks from the rest: 0.5 is guessing, and the signal planted in these
clicks reaches {truth:.4f}. Served as trained means that splitting the model over servers changed no answer."""
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:32px auto;padding:0 20px;color:#1b2430;background:#fff}
h1{font-size:27px;margin:0 0 4px}h2{font-size:18px;margin:38px 0 6px}p{margin:4px 0 10px;color:#475569}
.figures{display:flex;gap:14px;flex-wrap:wrap;margin:18px 0}.figure{flex:1;min-width:120px;border:1px solid #d5dce5;
border-radius:8px;padding:10px 14px}.figure b{display:block;font-size:23px;color:#0f172a;white-space:nowrap}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid #e5eaf0}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}
.key{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 5px 0 14px;vertical-align:-1px}
text{font:11px system-ui,sans-serif;fill:#475569}.axis{stroke:#cbd5e1;stroke-width:1}
.band{fill:#0f172a;opacity:.09}.mark{stroke:#0f172a;stroke-width:1;stroke-dasharray:3 3}
.number{font-weight:600;fill:#0f172a}td.what{white-space:nowrap}
.p50{fill:none;stroke:#4477aa;stroke-width:1.6}.p99{fill:none;stroke:#cc3311;stroke-width:1.6}
code{background:#f1f5f9;padding:1px 5px;border-radius:4px}.bad{color:#b91c1c}.good{color:#15803d}
"""


def render(report: Mapping[str, Any]) -> str:
    """Write the page."""
    end = max(1.0, *(bucket["t"] for bucket in report["timeline"]), *(told["to"] for told in report["story"]))
    chart = _Chart(end, report["story"], {v["pin"]: i for i, v in enumerate(report["versions"])})
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>cloudedge: three releases of a click model</title>",
        f"<style>{_STYLE}</style><h1>Three releases of a click model, while it was being used</h1>",
        f"<p>{_INTRODUCTION}</p>",
        _figures(report),
        f"<h2>What happened</h2><p>{_STORY}</p>",
        _story(report),
        chart.bars(),
        f"<h2>Answers per second, by the version that gave them</h2><p>{_ANSWERS}</p>",
        _legend(report, chart),
        chart.stacked(report["timeline"]),
        f"<h2>Latency</h2><p>{_key('#4477aa')}half of the requests are faster{_key('#cc3311')}99 % are faster (ms)</p>",
        chart.lines(report["timeline"], {"p50_ms": "p50", "p99_ms": "p99"}),
        f"<h2>Which version each server answers with</h2><p>{_STRIPS}</p>",
        _legend(report, chart),
        chart.strips(report["places"]),
        "<h2>Releases</h2>",
        _releases(report),
        f"<h2>Versions</h2><p>{_VERSIONS.format(truth=report['auc_of_the_truth'])}</p>",
        _versions(report),
        "</html>",
    ]
    return "\n".join(parts)


class _Chart:
    """Draws things over one time axis."""

    def __init__(self, end: float, story: Sequence[Mapping[str, Any]], rank: Mapping[str, int]) -> None:
        self.end, self.story, self.rank = end, story, rank

    def x(self, t: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(t, self.end) / self.end

    def colour(self, pin: str) -> str:
        return _COLOURS[self.rank[pin] % len(_COLOURS)] if pin in self.rank else "#cbd5e1"

    def frame(self, height: int, content: Iterable[str]) -> str:
        """Put a time axis below what is drawn, and what happened behind it: a numbered band each, a line at its end."""
        top, bands = 20, []
        for number, told in enumerate(self.story, 1):
            start, stop = self.x(told["from"]), self.x(told["to"])
            bands.append(
                f"<rect class=band x={start:.1f} y={top} width={max(1.0, stop - start):.1f} height={height} />"
                f"<line class=mark x1={stop:.1f} x2={stop:.1f} y1={top} y2={top + height} />"
                f"<text class=number x={(start + stop) / 2:.1f} y={top - 6} text-anchor=middle>{number}</text>"
            )
        steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, _LONGEST_TICK)
        step = next(s for s in steps if self.end / s <= _TICKS or s == _LONGEST_TICK)
        ticks = [
            f"<text x={self.x(t):.1f} y={top + height + 14} text-anchor=middle>{t} s</text>"
            for t in range(0, int(self.end) + 1, step)
        ]
        axis = f"<line class=axis x1={_LEFT} x2={_WIDTH - _RIGHT} y1={top + height} y2={top + height} />"
        body = f"<g transform='translate(0 {top})'>{''.join(content)}</g>"
        return f"<svg viewBox='0 0 {_WIDTH} {top + height + 20}'>{''.join(bands)}{body}{axis}{''.join(ticks)}</svg>"

    def bars(self, height: int = 16) -> str:
        """Draw what happened, a row each."""
        content = []
        for row, told in enumerate(self.story):
            y, start, stop = row * (height + 5), self.x(told["from"]), self.x(told["to"])
            at, anchor = (start - 6, "end") if stop > _WIDTH * 0.8 else (stop + 6, "start")
            content.append(
                f"<text x={_LEFT - 8} y={y + 12} text-anchor=end>{row + 1}. {escape(told['what'])}</text>"
                f"<rect x={start:.1f} y={y} width={max(2.0, stop - start):.1f} height={height} fill='{_tint(told)}' />"
                f"<text x={at:.1f} y={y + 12} text-anchor={anchor}>{told['to'] - told['from']:.1f} s</text>"
            )
        return self.frame(len(self.story) * (height + 5), content)

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
        return self.frame(height, content)

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
    update = report["releases"]["2"]
    figures = [
        (f"{report['requests']:,}", "requests answered"),
        (f"{report['failed_requests']}", "failed"),
        (f"{report['mixed_answers']}", "answers that mixed two versions"),
        (f"{report['max_abs_difference']:.1e}", "largest difference to the score of the whole model"),
        (f"{update['bytes_shipped'] / 1e6:.2f} MB", f"shipped to update, not {update['bytes_full'] / 1e6:.1f} MB"),
        (f"{report['rollback_seconds'] * 1000:.0f} ms", "to roll back"),
    ]
    return "<div class=figures>" + "".join(f"<div class=figure><b>{n}</b>{w}</div>" for n, w in figures) + "</div>"


def _story(report: Mapping[str, Any]) -> str:
    rows = ["<tr><th class=n>at<th>what<th>command<th>what became of it"]
    rows += [
        f"<tr><td class=n>{told['from']:.0f} s<td class=what>{number}. {escape(told['what'])}"
        f"<td class=what><code>{escape(told['command'])}</code><td>{escape(told['became'])}"
        for number, told in enumerate(report["story"], 1)
    ]
    return f"<table>{''.join(rows)}</table>"


def _tint(told: Mapping[str, Any]) -> str:
    if told["what"].startswith("kill"):
        return _NEUTRAL
    return _BAD if told["became"].startswith("taken back") else _GOOD


def _legend(report: Mapping[str, Any], chart: _Chart) -> str:
    return "<p>" + "".join(_key(chart.colour(v["pin"])) + escape(v["bundle"]) for v in report["versions"]) + "</p>"


def _key(colour: str) -> str:
    return f"<span class=key style='background:{colour}'></span>"


def _releases(report: Mapping[str, Any]) -> str:
    columns = ("took", "shipped", "everything", "p99 before", "during", "after")
    rows = ["<tr><th>release<th>bundle<th>outcome" + "".join(f"<th class=n>{column}" for column in columns)]
    for number, release in report["releases"].items():
        style = "good" if release["outcome"] == "done" else "bad"
        said = [escape(text) for text in (release["why"].partition("; ")[0], release["note"]) if text]
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
