"""The steps on this machine: the same inputs, the same order, real engines, no cluster.

    dataset     a folder of a local JuiceFS volume, warmed up; a plain folder without FUSE
    training    `cloudedge.training.local`, then the suite's own export, then our converter
    modelhub    a folder with the hub's layout
    serving     our runtime, kept running by a supervisor and probed once before the step is done
    visualdl    the logs read back, and VisualDL itself kept running if it is installed

Its folder holds ``datasets`` or ``data``, ``claims/NAME`` for each volume claim, ``hub`` and ``services``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudedge import supervisor
from cloudedge.bundle import published
from cloudedge.cache.local import LocalDatasets, keys_given
from cloudedge.errors import Conflict, InputError, NotFound, Rejected, Unavailable
from cloudedge.findings import refuse_errors
from cloudedge.pipeline import _objects as objects
from cloudedge.pipeline._convert import convert, pack
from cloudedge.pipeline._inputs import (
    ENDPOINT,
    DatasetInputs,
    ModelHubInputs,
    ServingInputs,
    StepInputs,
    TrainingInputs,
    VisualDLInputs,
)
from cloudedge.pipeline._modelhub import ModelHub, unpack
from cloudedge.pipeline._steps import Result, Steps
from cloudedge.pipeline._suites import ON_CLUSTER, SuitePaths, find_suite
from cloudedge.supervisor import ProcessSpec
from cloudedge.training import Role, TrainingJob
from cloudedge.training import local as local_training

__all__ = ["LocalSteps", "stop"]

_START_S, _ASK_S, _READ_BYTES = 300.0, 60.0, 1 << 20
_SERVICES = "services"


class LocalSteps(Steps):
    """Runs steps on this machine.

    Args:
        root: The folder for everything the steps keep.
        workdir: The folder to which relative names of programs and files refer.
        tell: Called with progress messages.
    """

    def __init__(
        self, root: Path, *, workdir: Path | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._root = root.absolute()
        self._workdir = (workdir or Path()).absolute()
        self._tell = tell

    def claim(self, name: str) -> Path:
        """Return the folder that stands for a volume claim, made on first use."""
        folder = self._root / "claims" / _plain_name(name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def unmount(self) -> None:
        """Unmount the data."""
        datasets = self._datasets()
        if objects.DATA_CENTER in datasets.names():
            datasets.open(objects.DATA_CENTER).unmount()

    def _dataset(self, inputs: DatasetInputs) -> Result:
        objects.sync_job(inputs).manifest()  # raises what a cluster would refuse
        path = (self._mounted(inputs.partitions) if _has_fuse() else self._root / "data") / inputs.name
        _check_action(inputs, f"data set {inputs.name}", exists=path.is_dir())
        if not _has_fuse():
            self._tell(f"FUSE is not available: {inputs.name} becomes a plain folder")
            return self._copy_folder(inputs, path)
        if inputs.action == "delete":
            if path.is_dir():
                self._datasets().open(objects.DATA_CENTER).remove([inputs.name], confirmed=True)
            return {"removed": inputs.name}
        data = self._datasets().open(objects.DATA_CENTER)
        if data.settings.partitions != inputs.partitions:
            self._tell(f"all data sets share the {data.settings.partitions} partition(s) of the first one")
        self._tell(f"copying {inputs.source_uri}")
        # There are no secrets here: the keys are in the environment, as for `cloudedge dataset sync`.
        copied = data.sync(_local_source(inputs.source_uri), inputs.name, keys=keys_given())
        warmed = data.warmup([inputs.name])
        return {"path": str(path), "files": copied.files, "copied": copied.copied, "warmed": sum(warmed.files)}

    def _copy_folder(self, inputs: DatasetInputs, path: Path) -> Result:
        if path.is_dir():
            shutil.rmtree(path)
        if inputs.action == "delete":
            return {"removed": inputs.name}
        source = Path(_local_source(inputs.source_uri))
        if not source.is_dir():
            raise NotFound(
                f"the source folder {source} does not exist",
                hint="Install FUSE and JuiceFS to copy from other sources.",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with published(path, f"copying {source}") as draft:
            shutil.copytree(source, draft)
        return {"path": str(path), "files": sum(each.is_file() for each in path.rglob("*"))}

    def _training(self, inputs: TrainingInputs) -> Result:
        run = local_training.LocalRun(inputs.name)
        _check_action(inputs, f"training {inputs.name}", exists=run.folder.exists())
        shown = objects.visualdl_inputs(inputs)
        if inputs.action == "delete":
            if run.folder.exists():
                run.delete()
            return self._visualdl(shown)
        suite, place = find_suite(inputs.project), self._suite_paths(inputs)
        if inputs.pretrain_model:
            self._fetch_weights(inputs.pretrain_model, Path(place.pretrained(inputs.pretrain_model)))
        worker = Role(inputs.image or suite.default_image, inputs.worker_replicas, suite.train_command(inputs, place))
        job = TrainingJob.paddle(inputs.name, worker=worker)
        if inputs.ps_replicas:
            job = TrainingJob.ps(inputs.name, ps=Role(worker.image, inputs.ps_replicas, worker.command), worker=worker)
        refuse_errors(inputs.name, job.validate())
        run = local_training.submit(job, replace=run.folder.exists(), workdir=self._workdir)
        run.wait(
            timeout_s=inputs.timeout_minutes * 60, on_change=lambda now: self._tell(f"{inputs.name} is {now.state}")
        )
        result: Result = {"models": place.models}
        if inputs.save_inference:
            self._command(inputs, suite.export_command(inputs, place), self._workdir)
            result["inference"] = place.inference
        if inputs.need_convert:
            folder = Path(place.task, inputs.name)
            convert(Path(place.inference), folder)
            pack(folder, folder.with_name(f"{inputs.name}.tar.gz"))
            result["packed"] = f"{folder}.tar.gz"
        return result | ({"visualdl": self._visualdl(shown)} if inputs.use_visualdl else {})

    def _modelhub(self, inputs: ModelHubInputs) -> Result:
        hub = self._hub(inputs.endpoint)
        if inputs.action == "delete":
            return {"removed": inputs.name}  # only the Job; versions stay
        exists = hub.record(inputs.model_name, inputs.model_version) is not None
        _check_action(inputs, f"version {inputs.model_version} of {inputs.model_name}", exists=exists)
        file = self.claim(inputs.pvc_name) / f"{inputs.model_name}.tar.gz"
        record = hub.push(file, inputs.model_name, inputs.model_version)
        return {"model": inputs.model_name, "version": inputs.model_version, **vars(record)}

    def _serving(self, inputs: ServingInputs) -> Result:
        process = f"serving-{inputs.name}"
        _check_action(inputs, f"service {inputs.name}", exists=process in self._processes())
        if inputs.action == "delete":
            self._end(process)
            return {"removed": inputs.name}
        objects.paddle_service(inputs, objects.UNKNOWN).default.manifest()  # the image is checked but not used
        hub = self._hub(inputs.endpoint)
        record = hub.record(inputs.model_name, inputs.model_version)
        if record is None:
            raise NotFound(f"{inputs.model_name} {inputs.model_version} is not in the hub")
        models = self._root / _SERVICES / "models" / inputs.name
        folder = models / record.sha256[:16]
        if not folder.is_dir():
            models.mkdir(parents=True, exist_ok=True)
            archive = models / f"{record.sha256[:16]}.tar.gz"
            archive.unlink(missing_ok=True)
            hub.fetch(inputs.model_name, inputs.model_version, archive)
            unpack(archive, folder)
            archive.unlink()
        model = folder / inputs.model_name / "server"
        words = [sys.executable, "-m", "cloudedge", "serve", str(model), "--service", inputs.name]
        words += ["--hub", str(self._root / _SERVICES / "hub"), "--port", str(inputs.port), "--admin-port", "0"]
        url = f"http://127.0.0.1:{inputs.port}"
        self._keep(ProcessSpec(process, tuple(words)), f"{url}/readyz")
        answer = _probe(url)
        return {"url": url, "sha256": record.sha256, "answered": answer}

    def _visualdl(self, inputs: VisualDLInputs) -> Result:
        process = f"visualdl-{inputs.name}"
        _check_action(inputs, f"VisualDL {inputs.name}", exists=process in self._processes())
        if inputs.action == "delete":
            self._end(process)
            return {"removed": inputs.name}
        logs = self._in_claim(inputs, inputs.logdir)
        found = sorted(logs.rglob("*vdlrecords*.log")) if logs.is_dir() else []
        if not found:
            raise NotFound(f"{logs} holds no VisualDL logs", hint="Train with Use VisualDL.")
        result: Result = {"logs": str(logs), "files": len(found), "view": f"visualdl --logdir {logs}"}
        program = Path(sys.executable).with_name("visualdl")
        if not program.exists():
            self._tell("visualdl is not installed and its logs are only kept; run `pip install 'cloudedge[visualdl]'`")
            return result
        model = str(self._in_claim(inputs, inputs.model)) if inputs.model else ""
        adapted = inputs if not model else VisualDLInputs(**{**vars(inputs), "model": model})
        words = [str(program), *objects.visualdl_command(adapted, str(logs), "127.0.0.1")[1:]]
        url = f"http://127.0.0.1:{inputs.port}"
        self._keep(ProcessSpec(process, tuple(words), whole=True), f"{url}{objects.VISUALDL_ALIVE}")
        return result | {"url": f"{url}{inputs.public_path}"}

    def _suite_paths(self, inputs: TrainingInputs) -> SuitePaths:
        data = self._mounted() if _has_fuse() else self._root / "data"
        if not (data / inputs.dataset).is_dir():
            raise NotFound(
                f"the data set {inputs.dataset!r} does not exist on this machine", hint="Run its dataset step first."
            )
        return SuitePaths(str(data), str(self.claim(inputs.pvc_name)))

    def _in_claim(self, inputs: VisualDLInputs, path: str) -> Path:
        """Return the local path for a path that the pod would see below the claim's mount."""
        mount = inputs.mount_path.rstrip("/") or ON_CLUSTER.task
        if not (path == mount or path.startswith(f"{mount}/")):
            raise InputError(f"{path} is not below {mount}, the mount path of the claim {inputs.pvc_name}")
        return self.claim(inputs.pvc_name) / path.removeprefix(mount).lstrip("/")

    def _hub(self, endpoint: str) -> ModelHub:
        return ModelHub.at(str(self._root / "hub") if endpoint == ENDPOINT else endpoint, prepare=endpoint != ENDPOINT)

    def _datasets(self) -> LocalDatasets:
        return LocalDatasets(self._root / "datasets")

    def _mounted(self, partitions: int = 1) -> Path:
        datasets = self._datasets()
        if objects.DATA_CENTER not in datasets.names():
            datasets.create(objects.DATA_CENTER, partitions=partitions)
        return datasets.open(objects.DATA_CENTER).mount()

    def _fetch_weights(self, address: str, stem: Path) -> None:
        import requests  # noqa: PLC0415 - slow to import

        target = stem.with_name(f"{stem.name}.{address.rpartition('.')[2]}")
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with requests.get(address, stream=True, timeout=_ASK_S) as answer:
                answer.raise_for_status()
                with published(target, f"fetching {address}") as draft, draft.open("wb") as out:
                    for block in answer.iter_content(_READ_BYTES):
                        out.write(block)
        except requests.RequestException as error:
            raise Unavailable(f"fetching {address}: {error}") from error

    def _command(self, inputs: StepInputs, words: Sequence[str], workdir: Path) -> None:
        program = [sys.executable if words[0].startswith("python") else words[0], *words[1:]]
        self._tell(" ".join(words))
        done = subprocess.run(program, cwd=workdir, check=False, capture_output=True, text=True)
        if done.returncode:
            last = "".join(f"\n  {line}" for line in (done.stdout + done.stderr).splitlines()[-20:])
            raise Rejected(f"{inputs.name}: {words[0]} ended with {done.returncode}{last}")

    def _processes(self) -> dict[str, ProcessSpec]:
        folder = self._root / _SERVICES
        return {spec.name: spec for spec in supervisor.read_specs(folder)} if (folder / _SPECS).exists() else {}

    def _keep(self, spec: ProcessSpec, url: str) -> None:
        """Run a process, replacing one of its name, and wait until it answers.

        Raises:
            Conflict: another process listens on its port.
        """
        folder, known = self._root / _SERVICES, self._processes()
        if known.get(spec.name) != spec:
            others = [each for name, each in known.items() if name != spec.name]
            if spec.name in known:
                supervisor.change(folder, others, gone=[spec.name])
            _check_port(urlsplit(url).port or 0)
        wanted = [*(each for name, each in known.items() if name != spec.name), spec]
        self._tell(f"waiting for {url}")
        supervisor.up(folder, wanted, is_ready=lambda name: name != spec.name or _answers(url), within_s=_START_S)

    def _end(self, process: str) -> None:
        folder, known = self._root / _SERVICES, self._processes()
        if process not in known:
            return
        left = [spec for name, spec in known.items() if name != process]
        supervisor.change(folder, left, gone=[process])
        if not left:
            supervisor.down(folder)


_SPECS = "processes.json"


def stop(root: Path) -> list[str]:
    """End every service that pipelines left running in a folder; return their names."""
    folder = root.absolute() / _SERVICES
    names = [spec.name for spec in supervisor.read_specs(folder)] if (folder / _SPECS).exists() else []
    if names or supervisor.is_up(folder):
        supervisor.down(folder)
        supervisor.save_specs(folder, [])
    LocalSteps(root).unmount()
    return names


def _check_action(inputs: StepInputs, what: str, *, exists: bool) -> None:
    if inputs.action == "create" and exists:
        raise Conflict(f"{what} exists already", hint="Use the action `apply` to replace it.")
    if inputs.action == "patch" and not exists:
        raise NotFound(f"{what} does not exist", hint="Use the action `apply` to create it.")


def _check_port(port: int) -> None:
    """Refuse a port in use: VisualDL would run without it, and another server's answer would pass for ours."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise Conflict(
            f"cannot use port {port}: {error.strerror}", hint="Choose another port, or end the process that uses it."
        ) from error


def _plain_name(name: str) -> str:
    if not name or "/" in name or name.startswith("."):
        raise InputError(f"{name!r} is not the name of a volume claim")
    return name


def _local_source(uri: str) -> str:
    parts = urlsplit(uri)
    return parts.path if parts.scheme == "file" else uri


def _has_fuse() -> bool:
    mounts = shutil.which("fusermount") or shutil.which("fusermount3") or os.geteuid() == 0
    if not os.access("/dev/fuse", os.W_OK) or not mounts:
        return False
    return bool(Path(sys.executable).with_name("juicefs").exists() or shutil.which("juicefs"))


def _answers(url: str) -> bool:
    import requests  # noqa: PLC0415 - slow to import

    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


def _probe(url: str) -> Any:
    """Send the model the example from its own description: an answer is what the step promises."""
    import requests  # noqa: PLC0415 - slow to import

    try:
        described = requests.get(f"{url}/openapi.json", timeout=_ASK_S).json()
        asked = described["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]["example"]
        answer = requests.post(f"{url}/v1/predict", json=asked, timeout=_ASK_S)
    except (requests.RequestException, LookupError, ValueError) as error:
        raise Unavailable(f"{url} did not answer: {error}") from error
    if not answer.ok:
        raise Rejected(f"{url} answered {answer.status_code}: {answer.text[:500]}")
    return answer.json()["outputs"]
