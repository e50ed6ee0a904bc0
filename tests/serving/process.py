"""`cloudedge serve` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys


class Process:
    def __init__(self, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cloudedge", "serve", *map(str, arguments), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        text = ""
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                break
        if not text:
            raise RuntimeError(self.process.stderr.read())
        self.ports = json.loads(text)

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.process.stdout.close()
        self.errors = self.process.stderr.read()
        self.process.stderr.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
