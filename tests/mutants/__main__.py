"""`make mutants`: remove every named guard in turn; fail if one is removed unnoticed."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.mutants.guards import GUARDS
from tests.mutants.mutate import Finding, StaleGuardError, run_all, table


def main() -> int:
    """Run, print the table, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guard", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, default=500, help="seeds of the simulator, at most")
    parser.add_argument("--jobs", type=int, default=0, help="workers; 0: one per core")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--report", type=Path, default=Path("out/mutants"), help="the folder of the report")
    asked = parser.parse_args()
    unknown = sorted(set(asked.guard) - {guard.name for guard in GUARDS})
    if unknown:
        parser.error(f"no such guard: {', '.join(unknown)}")
    guards = [guard for guard in GUARDS if not asked.guard or guard.name in asked.guard]

    def tell(found: Finding) -> None:
        seeds = f" ({found.seeds} seeds)" if found.seeds else ""
        sys.stderr.write(f"{found.guard}: {found.error or found.by or 'nothing'}{seeds}, {found.seconds} s\n")

    try:
        findings = run_all(guards, seeds=asked.seeds, jobs=asked.jobs or None, tell=tell)
    except StaleGuardError as error:
        parser.error(str(error))
    report = table(guards, findings)
    asked.report.mkdir(parents=True, exist_ok=True)
    (asked.report / "report.md").write_text(f"# Guards\n\n{report}")
    (asked.report / "report.json").write_text(json.dumps([asdict(each) for each in findings], indent=1) + "\n")
    sys.stdout.write(json.dumps([asdict(each) for each in findings]) + "\n" if asked.json else report)
    return 0 if all(each.is_good for each in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
