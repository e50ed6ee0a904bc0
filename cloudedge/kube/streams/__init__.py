"""Connections to a cluster that stay open: watches, waits, logs, commands in pods and forwarded ports."""

from __future__ import annotations

from cloudedge.kube.streams._exec import Ran, run_in_pod
from cloudedge.kube.streams._forward import Forward
from cloudedge.kube.streams._logs import LogLine, Logs
from cloudedge.kube.streams._waiting import Waiting
from cloudedge.kube.streams._watch import WINDOW_S, Event, Watch

__all__ = ["WINDOW_S", "Event", "Forward", "LogLine", "Logs", "Ran", "Waiting", "Watch", "run_in_pod"]
