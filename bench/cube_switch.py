"""How long a guarded switch leaves shards on different versions, as upstream's servers are switched.

Servers are cloudedge's own, spoken to in upstream's words: control commands and seeks without pins. All are on this
machine, so the time is that of sending the commands and of the servers taking them; a network adds the spread of its
own delays, not their length.

    python bench/cube_switch.py [--shards 8] [--copies 2] [--rounds 50] [--json]

Upstream's own transfer gives the command to one server after the other, through agents that wait for seconds. At the
end the bar is said to be met or missed; exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from _bars import Bar, judge

from cloudedge import seqfile
from cloudedge.cube import Server, ServerConfig, build
from cloudedge.cube.formats._transfer_conf import CubeAddress
from cloudedge.cube.upstream import AtomicSwitch, UpstreamReplica, VersionIds, journal_memory
from cloudedge.journal import Journal

VERSIONS = ("1000000100", "1000000200")
MEDIAN_BAR_MS = 20.0
"""Well above what a quiet machine shows, and far below the seconds of one command after the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()

    def say(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        with seqfile.Writer(root / "rows") as out:
            keys = np.arange(10_000, dtype=np.uint64)
            out.append_rows(keys, np.zeros((len(keys), 8), np.float32))
        for version in VERSIONS:
            build([root / "rows"], output=root, table="ctr", shards=options.shards, version=int(version))
        journal = stack.enter_context(Journal(root / "journal.db"))
        ids = VersionIds("ctr", journal_memory(journal, stack.enter_context(journal.writing("bench"))))
        replicas = []
        for shard in range(options.shards):
            for copy in range(options.copies):
                data = root / f"{shard}-{copy}" / "data"
                data.mkdir(parents=True)
                for version in VERSIONS:
                    (data / version).symlink_to(root / f"{version}_{version}" / f"ctr_part{shard}")
                server = stack.enter_context(Server(ServerConfig(port=0, threads=1, data_dir=data)))
                server.load(data / VERSIONS[0], VERSIONS[0], activate=True)
                cube = CubeAddress("127.0.0.1", server.port, str(data.parent))
                replica = UpstreamReplica(
                    table="ctr", shard=shard, copy=copy, agent=("127.0.0.1", 1), cube=cube, ids=ids
                )
                stack.callback(replica.close)
                replica.load(VERSIONS[1])
                replicas.append(replica)
        switch = AtomicSwitch(replicas)
        found = [switch.switch(VERSIONS[(i + 1) % 2]) for i in range(options.rounds)]
        most = sorted(report.mixed_at_most_s * 1e3 for report in found)
        half, most_of_them, all_of_them = (most[int(share * (len(most) - 1))] for share in (0.5, 0.9, 1))
        say(f"{len(replicas)} servers, {options.rounds} switches; versions were mixed for at most")
        say(f"  median {half:.2f} ms, 90 % {most_of_them:.2f} ms, all {all_of_them:.2f} ms")
        results = {"servers": len(replicas), "median_ms": half, "p90_ms": most_of_them, "max_ms": all_of_them}
        results |= judge([Bar("mixed for, median, ms", half, "at most", MEDIAN_BAR_MS)], say)
    if options.json:
        print(json.dumps(results, indent=2))
    sys.exit(1 if results["missed"] else 0)


if __name__ == "__main__":
    main()
