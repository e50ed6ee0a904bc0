"""The walk of a row from the trainer to an answer, counted by one rule on any checkout.

    python bench/walk.py [CHECKOUT] [--json] [--stacks FOLDER]

This checkout, or another one with its own environment (CHECKOUT/.venv), runs `bench/_walk_scenario.py`: split, pack,
release to a local target of real processes, ask; twice, the second version as a delta. `bench/_walk_hook` records the
call stacks of all its processes. WAYPOINTS are the moments when the row leaves Python or the thread: a file written, an
order sent, native code called. The walk is every function of the package on the shortest stack that ends in each
waypoint, counted once. A hand-over to another thread, process or port adds nothing, and neither does native code.
Exit code 1 when a waypoint was not reached: its function has a new name, to be added here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
WAYPOINTS = {
    "the split begins": "split > (_run_job|_ask)",
    "rows written": "_write_table > table_bytes",
    "packed as a delta": "Bundle.pack > _write_delta",
    "artifact built": "run_build > _take",
    "order to stage sent": "CubeReplica.stage > CubeReplica._begin > (AdminHttpClient.call|CubeReplica._ask)",
    "order to stage obeyed": "_Handler._do > Jobs.stage",
    "artifact fetched": "Jobs._run > (Download._append|_Download._chunks)",
    "artifact sent": "_Handler._send_span",
    "order to load sent": "CubeReplica.load > (AdminHttpClient.call|CubeReplica._ask)",
    "order to load obeyed": "_Handler._do > Jobs.load",
    "part loaded": "Jobs._run > (PartStore|Store).open",
    "version added": "Jobs._run > Server.add",
    "order to activate sent": "CubeReplica.activate > (AdminHttpClient.call|CubeReplica._ask)",
    "version activated": "_Handler._do > Server.activate",
    "request sent": "Client.predict > _Http._post",
    "request queued": "Connection.data_received > (VersionQueue|Lane).put",
    "row looked up": "(VersionQueue|Lane)._run > CubeRows.rows > Client._ask",
    "dense program run": "(VersionQueue|Lane)._run > Predictor.run",
    "answer sent": "Connection._drive > Connection._send",
}
"""The row's way, by what happens: functions on a stack from the outside to the inside, the last one at its end.

A function that has other names in other checkouts has all of them here. The names are patterns.
"""

Stack = tuple[str, ...]


def trace(checkout: Path, folder: Path) -> None:
    """Run the scenario in a checkout and leave its stacks in a folder."""
    work = folder / "work"
    work.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE / "_walk_hook"),
        "WALK_PACKAGE": str(checkout / "cloudedge"),
        "WALK_FOLDER": str(folder),
    }
    python = sys.executable if checkout == HERE.parent.resolve() else str(checkout / ".venv/bin/python")
    scenario = [python, str(HERE / "_walk_scenario.py"), str(work)]
    subprocess.run(scenario, check=True, cwd=checkout, env=environment, stdout=sys.stderr)


def read_stacks(folder: Path) -> list[Stack]:
    """Read the stacks of all processes, the shortest first."""
    lines = {line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()}
    stacks: list[Stack] = [tuple(json.loads(line)) for line in lines]
    return sorted(stacks, key=lambda stack: (len(stack), stack))


def find(waypoint: str, stacks: list[Stack]) -> Stack | None:
    """Return the shortest stack that ends in a waypoint."""
    names = [re.compile(name) for name in waypoint.split(" > ")]
    return next((stack for stack in stacks if _ends_in(names, [label.split(":")[1] for label in stack])), None)


def _ends_in(names: list[re.Pattern[str]], functions: list[str]) -> bool:
    if not names[-1].fullmatch(functions[-1]):
        return False
    rest = iter(functions[:-1])
    return all(any(name.fullmatch(function) for function in rest) for name in names[:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=HERE.parent, help="with its environment in .venv")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stacks", type=Path, help="read the stacks of an earlier run instead of running")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if args.stacks is None:
            trace(args.checkout.resolve(), Path(scratch))
        stacks = read_stacks(args.stacks or Path(scratch))
    found = {what: find(waypoint, stacks) for what, waypoint in WAYPOINTS.items()}
    functions = list(dict.fromkeys(label for stack in found.values() for label in stack or ()))
    files = {label.split(":")[0] for label in functions}
    if args.json:
        print(json.dumps({"functions": len(functions), "files": len(files), "stacks": found}, indent=1))
    else:
        seen: set[str] = set()
        for what, stack in found.items():
            print(f"{what}:" if stack else f"{what}: NOT REACHED")
            for label in stack or ():
                print(f"  {' ' if label in seen else '+'} {label}")
            seen.update(stack or ())
        print(f"{len(functions)} functions in {len(files)} files")
    sys.exit(not all(found.values()))


if __name__ == "__main__":
    main()
