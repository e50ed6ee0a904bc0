"""The supervisor: processes come back, outlive whoever started them, and end when told."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloudedge.clock import SystemClock
from cloudedge.errors import Unavailable
from cloudedge.supervisor import ProcessSpec, down, find_processes, is_up, pause_before_restart, process_states, up
from cloudedge.supervisor._supervisor import save_specs
from tests.faults import proves_fault

pytestmark = pytest.mark.parts

_SLEEPER = "import time; print('here', flush=True); time.sleep(600)"


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "target"
    down(tmp_path / "target", within_s=20)
    assert find_processes(tmp_path / "target") == {}


def python(name, code, **more):
    return ProcessSpec(name, (sys.executable, "-c", code), **more)


def eventually(condition, within_s=20):
    end = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)
    return found


def test_pauses_double_up_to_a_limit():
    assert [pause_before_restart(n) for n in (0, 1, 2, 3)] == [0.0, 0.2, 0.4, 0.8]
    assert pause_before_restart(500) == 30.0


def test_processes_run_and_end(folder):
    up(folder, [python("a", _SLEEPER), python("b", _SLEEPER)])
    assert is_up(folder)
    assert set(find_processes(folder)) == {"a", "b"}
    eventually(lambda: (folder / "logs" / "a.log").read_text() == "here\n")
    down(folder)
    assert not is_up(folder)
    assert find_processes(folder) == {}


def test_a_second_up_leaves_what_runs_alone_and_changes_what_changed(folder):
    up(folder, [python("a", _SLEEPER), python("b", _SLEEPER)])
    before = find_processes(folder)
    up(folder, [python("a", _SLEEPER), python("b", _SLEEPER, env={"X": "1"}), python("c", _SLEEPER)])
    now = find_processes(folder)
    assert set(now) == {"a", "b", "c"}
    assert (now["a"] == before["a"], now["b"] == before["b"]) == (True, False)


def test_a_killed_process_comes_back(folder):
    up(folder, [python("a", _SLEEPER)])
    before = find_processes(folder)["a"]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: find_processes(folder).get("a") not in {None, before})
    eventually(lambda: process_states(folder)["a"]["restarts"] == 1)
    assert process_states(folder)["a"]["last_exit"] == "SIGKILL"


def test_a_killed_supervisor_leaves_its_processes_to_the_next_one(folder):
    specs = [python("a", _SLEEPER), python("b", _SLEEPER)]
    up(folder, specs)
    before = find_processes(folder)
    os.kill(int((folder / "supervisor.lock").read_text()), signal.SIGKILL)
    eventually(lambda: not is_up(folder))
    assert find_processes(folder) == before  # nobody noticed
    up(folder, specs)
    assert is_up(folder)
    assert find_processes(folder) == before
    os.kill(before["a"], signal.SIGKILL)  # and the new one looks after them
    eventually(lambda: find_processes(folder).get("a") not in {None, before["a"]})


def test_down_after_the_supervisor_was_killed(folder):
    up(folder, [python("a", _SLEEPER)])
    os.kill(int((folder / "supervisor.lock").read_text()), signal.SIGKILL)
    eventually(lambda: not is_up(folder))
    down(folder)
    assert find_processes(folder) == {}


def test_it_outlives_the_terminal(folder, tmp_path):
    code = (
        "import sys, pathlib\n"
        "from cloudedge.supervisor import ProcessSpec, up\n"
        f"up(pathlib.Path(sys.argv[1]), [ProcessSpec('a', ({sys.executable!r}, '-c', {_SLEEPER!r}))])\n"
    )
    # What a terminal's end does: the whole session is hung up.
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], start_new_session=True) as shell:
        assert shell.wait(120) == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGHUP)
    assert is_up(folder)
    assert set(find_processes(folder)) == {"a"}


def test_one_that_does_not_get_ready_is_named_with_its_last_words(folder):
    broken = python("b", "import sys; sys.exit('no such model')")
    log = folder / "logs" / "b.log"

    class Patient(SystemClock):
        """Time stands still until it was started a second time."""

        def monotonic(self):
            return super().monotonic() if log.exists() and log.read_text().count("no such model") > 1 else 0.0

    with pytest.raises(Unavailable, match=r"b is not ready after 0 s; its last output:\n  no such model"):
        up(folder, [python("a", _SLEEPER), broken], is_ready=lambda name: name == "a", within_s=0.2, clock=Patient())
    assert set(find_processes(folder)) >= {"a"}


def test_logs_are_kept_to_a_size(folder):
    """What a process wrote last is there, and what is older than the file beside it is gone."""
    talker = "import time\nfor line in range(400): print(f'line {line:03} ' + 'x' * 90, flush=True); time.sleep(0.01)"
    code = (
        "import sys, pathlib\n"
        "from cloudedge.supervisor import _supervisor\n"
        "_supervisor._LOG_BYTES, _supervisor._LOG_CHECK_S = 10_000, 0.05\n"
        "_supervisor.Supervisor(pathlib.Path(sys.argv[1])).run()\n"
    )
    folder.mkdir()
    save_specs(folder, [python("a", f"{talker}\ntime.sleep(600)")])
    log, older = folder / "logs" / "a.log", folder / "logs" / "a.log.1"

    def kept():
        return "".join(path.read_text() for path in (older, log) if path.exists())

    with subprocess.Popen([sys.executable, "-c", code, str(folder)], start_new_session=True) as supervisor:
        try:
            eventually(lambda: "line 399" in kept())
        finally:
            supervisor.terminate()
            assert supervisor.wait(120) == 0
    lines = kept().splitlines()
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == sorted(set(numbers))  # in order; one that was written as the file was cut may be lost
    assert all(len(line) == len(lines[-1]) for line in lines)
    assert (numbers[-1], numbers[0] > 0) == (399, True)  # the newest ones, not all of them
    assert older.stat().st_size >= 10_000


def test_its_own_log_is_kept_to_a_size_too(folder):
    code = (
        "import os, sys, pathlib\n"
        "from cloudedge.supervisor import _supervisor\n"
        "_supervisor._LOG_BYTES, _supervisor._LOG_CHECK_S = 1000, 0.05\n"
        "_supervisor.Supervisor(pathlib.Path(sys.argv[1])).run()\n"
    )
    (folder / "logs").mkdir(parents=True)
    save_specs(folder, [])
    log = folder / "logs" / "supervisor.log"
    log.write_text("said before\n" * 100)
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stderr=output, start_new_session=True
        ) as supervisor,
    ):
        try:
            eventually(lambda: log.stat().st_size == 0)
        finally:
            supervisor.terminate()
            assert supervisor.wait(120) == 0
    assert log.with_suffix(".log.1").read_text() == "said before\n" * 100


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own, with hardly any room."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    down(place / "target", within_s=20)
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_ends_nothing(small_disk):
    """Processes that die meanwhile come back, and what could not be written is written once there is room."""
    folder = small_disk / "target"
    silent = "import time; time.sleep(600)"
    up(folder, [python("a", silent), python("b", silent)])
    supervisor = int((folder / "supervisor.lock").read_text())
    (folder / "logs" / "b.log").unlink()  # so that a file has to be made
    filler = fill(small_disk)
    for _ in range(2):
        kill_all_and_wait(folder)
    assert is_up(folder)
    assert int((folder / "supervisor.lock").read_text()) == supervisor
    assert process_states(folder)["a"]["restarts"] == 0  # as it was when there was room
    filler.unlink()
    eventually(lambda: process_states(folder)["a"]["restarts"] == 2)
    assert {name: state["pid"] for name, state in process_states(folder).items()} == find_processes(folder)
    assert "state.json: can be written again" in (folder / "logs" / "supervisor.log").read_text()
    assert not list(folder.glob(".state.json.*"))


def kill_all_and_wait(folder):
    before = find_processes(folder)
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)

    def are_back():
        now = find_processes(folder)
        return now.keys() == before.keys() and not set(now.values()) & set(before.values())

    eventually(are_back)


def fill(disk):
    """Take up all room and all names there are."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_it_writes_only_what_changed(folder):
    up(folder, [python("a", _SLEEPER)])
    written = (folder / "state.json").stat().st_mtime_ns
    supervisor = int((folder / "supervisor.lock").read_text())
    for _ in range(3):
        os.kill(supervisor, signal.SIGHUP)  # it wakes up, reads what shall run, and finds it running
        time.sleep(0.1)
    assert (folder / "state.json").stat().st_mtime_ns == written


def test_one_that_does_not_stop_is_killed(folder):
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('in', flush=True); time.sleep(600)"
    )
    up(folder, [python("a", stubborn, stop_s=0.3)])
    eventually(lambda: (folder / "logs" / "a.log").read_text() == "in\n")
    down(folder, within_s=20)
    assert find_processes(folder) == {}


def test_what_a_script_started_ends_with_it(folder):
    """A shell does not pass signals on; a server that it leaves behind would keep the port of the next one."""
    child = folder / "child"
    script = f"sleep 1000 & echo $! > {child}.new; mv {child}.new {child}; wait; true"
    spec = ProcessSpec("script", ("/bin/sh", "-c", script), whole=True)
    up(folder, [spec])
    eventually(child.exists)
    pid = int(child.read_text())
    os.kill(find_processes(folder)["script"], signal.SIGKILL)
    eventually(lambda: not is_alive(pid))
    eventually(lambda: child.exists() and int(child.read_text()) != pid)
    pid = int(child.read_text())
    down(folder)
    eventually(lambda: not is_alive(pid))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
_IMPATIENT = """
import sys, pathlib
from cloudedge.supervisor import _health, _supervisor
_health.HUNG_S, _health.EVERY_S, _health.TIMEOUT_S, _supervisor._HUNG_GRACE_S = 1.0, 0.1, 0.5, 0.3
_supervisor.Supervisor(pathlib.Path(sys.argv[1])).run()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@contextlib.contextmanager
def impatient_supervisor(folder, specs):
    (folder / "logs").mkdir(parents=True)
    save_specs(folder, specs)
    with (
        (folder / "logs" / "supervisor.log").open("ab") as log,
        subprocess.Popen([sys.executable, "-c", _IMPATIENT, str(folder)], stderr=log, start_new_session=True) as one,
    ):
        try:
            yield
        finally:
            one.terminate()
            assert one.wait(120) == 0


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        return connection.recv(9) == b"HTTP/1.0 "
    return False


@proves_fault(
    area="servers",
    fault="a server of a local target hangs",
    happens="the supervisor restarts it; `status` names the restart and its reason",
    cure="nothing",
)
def test_one_that_hangs_is_restarted(folder):
    port = free_port()
    spec = python("a", _SERVER.format(port=port), health=f"http://127.0.0.1:{port}/health")
    with impatient_supervisor(folder, [spec, python("b", _SLEEPER)]):
        eventually(lambda: answers(port), 60)
        before = find_processes(folder)
        time.sleep(1.5)  # it is probed, and well
        assert find_processes(folder) == before
        os.kill(before["a"], signal.SIGSTOP)
        eventually(lambda: find_processes(folder).get("a") not in {None, before["a"]}, 60)
        eventually(lambda: answers(port), 60)
        eventually(lambda: process_states(folder)["a"]["hangs"] == 1)
        state = process_states(folder)
        assert state["a"]["last_exit"].startswith("hung: no answer for ")
        assert (state["a"]["restarts"], state["b"]["restarts"]) == (1, 0)
        assert find_processes(folder)["b"] == before["b"]
        assert (
            f"a: hung: no answer for {state['a']['last_exit'].split()[4]} s from http"
            in (folder / "logs" / "supervisor.log").read_text()
        )


def test_one_that_never_answered_is_starting(folder):
    """A server that loads for long has no port yet; it is not killed for that."""
    with impatient_supervisor(folder, [python("a", _SLEEPER, health=f"http://127.0.0.1:{free_port()}/health")]):
        before = eventually(lambda: find_processes(folder).get("a"), 60)
        time.sleep(3)
        assert find_processes(folder)["a"] == before
