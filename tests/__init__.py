"""Tests of cloudedge: a folder for each of the package's, a ring for each test (see `conftest.py`)."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""
