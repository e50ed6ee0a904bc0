"""The journal: every intent to change something and its outcome, written before and after the act.

`Journal` and `Writer` read and write it. `check_journal` and `repair_journal` look after its file: backups are taken by
themselves, and a damaged file is never written over.
"""

from cloudedge.journal._files import JournalDamaged
from cloudedge.journal._journal import Entry, Journal, Operation, State, What, Wish, Writer
from cloudedge.journal._repair import BackupReport, JournalReport, Repair, check_journal, repair_journal

__all__ = [
    "BackupReport",
    "Entry",
    "Journal",
    "JournalDamaged",
    "JournalReport",
    "Operation",
    "Repair",
    "State",
    "What",
    "Wish",
    "Writer",
    "check_journal",
    "repair_journal",
]
