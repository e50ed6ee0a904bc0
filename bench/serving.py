"""How fast a model is served, beside stock Paddle Serving 0.9.0 on the same machine, with the same bytes.

One run: a 13-64-1 net (`tiny`) and a CTR model of 26 slots (`ctr`), one row per request as Pipeline's JSON of keys and
values, 1, 8 and 32 connections that stay open, loaded by `wrk` with one thread. Every answer is checked: err_no 0 and
the right number; one wrong answer ends the run.

- `stock`: the Pipeline service as its users write it (dockerfiles/paddle-serving/web_service.py) on Python 3.9;
- `tuned`: the same without log lines and with up to 8 requests merged within 2 ms, which only its code can say;
- `cloudedge`: `cloudedge serve` as it comes. `ctr-cube` is the same CTR model with its table on a cube server.
- `paddle.inference` in a loop of one thread, in this process's child, in batches as large as ours came to
  (`rows_per_run`), set up as our runtime sets it up and with nothing around it: what nobody who calls Paddle can beat.

The systems take turns, round by round, and medians count. `cpu_ms_per_request` is the processor time of all of a
service's processes, cube server included; `rss_mb` their memory, shared pages divided among them. Neighbours on the
machine are no help: what they used is measured too (`others_share`), and where it is more than a tenth, only processor
time can be compared. A round in which the host took processors away from this machine (`stolen_share`) is run again,
whoever's it is, up to twice. Bars that count and are not met make the exit code 1.

    python bench/serving.py [--quick] [--json] [--seconds 2] [--rounds 3]

Needs `wrk`, and stock Paddle Serving (`make peers`) unless `--without-stock`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from _bars import Bar, judge  # noqa: E402

from tests.serving.stock import models as stock_models  # noqa: E402
from tests.serving.stock import servers as stock_lab  # noqa: E402

CONNECTIONS = (1, 8, 32)
BARS_AT = (8, 32)
QUIET = 0.1
STOLEN, TRIES = 0.005, 3
"""Nobody's 99th percentile says anything where the host takes more than this; how often a round is run at most."""
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", action="store_true", help="print rows for programs")
    parser.add_argument("--seconds", type=int, default=2, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="in which the systems take turns")
    parser.add_argument("--without-stock", action="store_true", help="measure cloudedge alone; fewer bars")
    parser.add_argument("--limit", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.limit:
        print(json.dumps(limit(options.limit, options.batches)))
        return
    if not shutil.which("wrk"):
        sys.exit("wrk is not installed (Debian package wrk)")
    if not options.without_stock and stock_lab.stock_python() is None:
        sys.exit("stock Paddle Serving is not installed (make peers); --without-stock measures cloudedge alone")
    seconds, rounds = (1, 1) if options.quick else (options.seconds, options.rounds)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="serving-bench-") as made:
        folder = Path(made)
        models = stock_lab.make_models(folder / "models")
        for model in ("tiny", "ctr"):
            systems = ["cloudedge"] if options.without_stock else ["stock", "tuned", "cloudedge"]
            for row in measure(models, model, systems, folder, seconds=seconds, rounds=rounds):
                if not options.json:
                    print_row(row, header=not rows)
                rows.append(row)
        limits = [found for model in ("tiny", "ctr") for found in limits_of(models, model, rows)]
    if not options.json:
        print_limits(limits)
        print(f"\nothers used {others_share(rows):.0%} of the machine; above {QUIET:.0%} only processor time counts")
        disturbed = sum(row["stolen_share"] > STOLEN for row in rows)
        print(f"the host took more than {STOLEN:.1%} of it in most rounds of {disturbed} of {len(rows)} rows")
    verdict = judge(bars(rows), print if not options.json else lambda _: None)
    if options.json:
        print(json.dumps({"rows": rows, "limits": limits, **verdict}, indent=2))
    sys.exit(bool(verdict["missed"]))


def measure(models: Path, model: str, systems: list[str], folder: Path, *, seconds: int, rounds: int) -> Iterator[Row]:
    """Yield the median of each system's rounds, for each number of connections."""
    known = json.loads((models / f"{model}.rows.json").read_text())
    environment = {
        "BODY": stock_lab.request_body(known["rows"][0]).decode(),
        "EXPECT": str(known["expect"][0][0][0]),
    }
    with contextlib.ExitStack() as stack:
        servers = {
            (system, model): stack.enter_context(start(system, models, model, folder / f"{system}-{model}"))
            for system in systems
        }
        if model == "ctr":
            servers["cloudedge", "ctr-cube"] = stack.enter_context(
                stock_lab.cloudedge_server(models, "ctr", folder / "cube", cube=True)
            )
        for connections in CONNECTIONS:
            tries: dict[tuple[str, str], list[Row]] = {key: [] for key in servers}
            for _ in range(rounds):
                for key, server in servers.items():
                    for _ in range(TRIES):
                        row = run(server, model, connections, seconds, environment, ours=key[0] == "cloudedge")
                        if row["stolen_share"] <= STOLEN:
                            break
                    tries[key].append(row)
            for (system, served), found in tries.items():
                middle = {name: round(statistics.median(row[name] for row in found), 3) for name in found[0]}
                yield {"system": system, "model": served, "connections": connections, **middle}


def start(system: str, models: Path, model: str, folder: Path) -> contextlib.AbstractContextManager[stock_lab.Server]:
    if system == "cloudedge":
        return stock_lab.cloudedge_server(models, model, folder)
    return stock_lab.stock_server(models / model, model, folder, tuned=system == "tuned")


def run(
    server: stock_lab.Server, model: str, connections: int, seconds: int, environment: dict[str, str], *, ours: bool
) -> Row:
    def load(duration: int) -> Row:
        command = ["wrk", "-t1", f"-c{connections}", f"-d{duration}s", "-s", ROOT / "bench/serving.lua"]
        done = subprocess.run(
            [*command, server.url(f"/{model}/prediction")],
            env=os.environ | environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        result: Row = json.loads(done.stdout.splitlines()[-1])
        if result["bad"] or not result["requests"]:
            sys.exit(f"{server}: {result['bad']} answers were not as they should be: {done.stderr}")
        return result

    load(1)  # warm connections, caches and branches
    before, _ = server.usage()
    machine, children = machine_seconds(), children_seconds()
    batches = [ran(server)] if ours else []
    result = load(seconds)
    batches += [ran(server)] if ours else []
    after, megabytes = server.usage()
    busy, stolen, total = (now - then for now, then in zip(machine_seconds(), machine, strict=True))
    others = busy - (after - before) - (children_seconds() - children)
    rows, runs = (now - then for then, now in zip(*batches, strict=True)) if ours else (0, 1)
    return {
        "rps": result["requests"] / result["seconds"],
        "p50_ms": result["p50_ms"],
        "p99_ms": result["p99_ms"],
        "cpu_ms_per_request": (after - before) * 1e3 / result["requests"],
        "rss_mb": megabytes,
        "others_share": max(0.0, others / total),
        "stolen_share": stolen / total,
        "rows_per_run": rows / max(1, runs),
    }


def ran(server: stock_lab.Server) -> tuple[int, int]:
    """Return the rows and the runs of the model so far."""
    with urllib.request.urlopen(server.url("/stats"), timeout=30) as answer:
        (version,) = json.load(answer)["versions"].values()
    return version["rows"], version["runs"]


def machine_seconds() -> tuple[float, float, float]:
    """Return the processor seconds of the whole machine so far: busy ones, those of them its host took, and all."""
    user, nice, system, idle, wait, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    busy = user + nice + system + sum(rest)
    ticks = os.sysconf("SC_CLK_TCK")
    return busy / ticks, rest[-1] / ticks, (busy + idle + wait) / ticks


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def limits_of(models: Path, model: str, rows: list[Row]) -> list[Row]:
    """Time the batches that our server ran, and say how many times that processor time our server took."""
    ours = {row["connections"]: row for row in rows if (row["system"], row["model"]) == ("cloudedge", model)}
    sizes = {connections: max(1, round(row["rows_per_run"])) for connections, row in ours.items()}
    batches = map(str, sorted(set(sizes.values())))
    command = [sys.executable, __file__, "--limit", models / model, "--batches", *batches]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    timed = {found["rows"]: found for found in json.loads(done.stdout.splitlines()[-1])}
    return [
        {
            "model": model,
            "connections": connections,
            **timed[size],
            "ours_over_limit": round(ours[connections]["cpu_ms_per_request"] / timed[size]["cpu_ms_per_row"], 2),
        }
        for connections, size in sizes.items()
    ]


def limit(model: Path, batches: list[int]) -> list[Row]:
    """Time batches through paddle.inference, as a loop in one thread does."""
    predictor = stock_models.load(model)
    inputs = {name: predictor.get_input_handle(name) for name in predictor.get_input_names()}
    (output,) = (predictor.get_output_handle(name) for name in predictor.get_output_names())
    known = json.loads((model.parent / f"{model.name}.rows.json").read_text())
    row = stock_models.arrays(known["rows"][0])
    found = []
    for size in batches:
        feed = [(inputs[name], np.repeat(array, size, axis=0)) for name, array in row.items()]
        took, cpu = [], 0.0
        for i in range(3000):
            begin, spent = time.perf_counter(), time.process_time()
            for handle, array in feed:
                handle.copy_from_cpu(array)
            predictor.run()
            answers = output.copy_to_cpu()
            took.append(time.perf_counter() - begin)
            cpu += time.process_time() - spent if i >= 500 else 0.0
            np.testing.assert_allclose(answers, np.repeat(known["expect"][0], size, axis=0), rtol=1e-4)
        call_ms = statistics.median(took[500:]) * 1e3
        found.append({"rows": size, "call_ms": round(call_ms, 4), "cpu_ms_per_row": round(cpu / 2500 / size * 1e3, 4)})
    return found


def print_row(row: Row, *, header: bool) -> None:
    if header:
        print(
            f"{'system':>10} {'model':>9} {'conns':>6} {'req/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'cpu ms':>8} {'MB':>6}"
        )
    print(
        f"{row['system']:>10} {row['model']:>9} {row['connections']:>6} {row['rps']:>8.0f} {row['p50_ms']:>8.2f}"
        f" {row['p99_ms']:>8.2f} {row['cpu_ms_per_request']:>8.3f} {row['rss_mb']:>6.0f}",
        flush=True,
    )


def print_limits(limits: list[Row]) -> None:
    for found in limits:
        print(
            f"paddle.inference in a loop, {found['model']}, {found['rows']} rows a call: {found['call_ms']} ms a call, "
            f"{found['cpu_ms_per_row']} ms CPU a row; ours at {found['connections']} connections took "
            f"{found['ours_over_limit']} times that"
        )


def bars(rows: list[Row]) -> list[Bar]:
    """Compare with what was promised."""
    found = {(row["system"], row["model"], row["connections"]): row for row in rows}
    quiet = others_share(rows) <= QUIET
    made = []
    for connections in BARS_AT:
        for model, over_stock, over_tuned in (("tiny", 10, 4), ("ctr", 8, 5)):
            at = f"{model}, {connections} connections"
            ours = found["cloudedge", model, connections]
            stock, tuned = (found.get((system, model, connections)) for system in ("stock", "tuned"))
            if model == "tiny":
                made.append(Bar(f"{at}: cpu ms per request", ours["cpu_ms_per_request"], "at most", 0.4))
            if stock and tuned:
                for name, row, times in (("stock", stock, over_stock), ("tuned", tuned, over_tuned)):
                    made.append(Bar(f"{at}: times {name}'s rate", ours["rps"] / row["rps"], "at least", times, quiet))
            if stock and model == "tiny":
                share = ours["p99_ms"] / stock["p99_ms"]
                made.append(Bar(f"{at}: share of stock's p99", share, "at most", 0.1, quiet))
        cube = found["cloudedge", "ctr-cube", connections]["rps"] / found["cloudedge", "ctr", connections]["rps"]
        at = f"ctr, {connections} connections"
        made.append(Bar(f"{at}: rate with cube, share of without", cube, "at least", 0.5, quiet))
    return made


def others_share(rows: list[Row]) -> float:
    return statistics.median(row["others_share"] for row in rows)


if __name__ == "__main__":
    main()
