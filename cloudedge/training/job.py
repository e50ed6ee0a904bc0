"""`TrainingJob`: the description of a training job. It runs nothing itself."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import yaml

from cloudedge.errors import InputError
from cloudedge.findings import Finding, refuse_errors
from cloudedge.hub import canonical_json
from cloudedge.training.checks import check_paddle_job, check_volcano_job
from cloudedge.training.manifest import (
    CTR_OUTPUT,
    OUTPUT,
    CleanPodPolicy,
    Elastic,
    Flavour,
    Gang,
    Intranet,
    JobClass,
    Manifest,
    PvcMount,
    Role,
    Samples,
    Surroundings,
    Task,
    adapted,
    check_shape,
    ctr_job,
    first_container,
    is_job,
    job_class,
    paddle_job,
    read_manifests,
    require_job,
    roles,
    section,
    volcano_job,
    with_class,
    with_queue,
    without_nulls,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["PaddleOptions", "TrainingJob"]

Mode = Literal["Single", "Collective", "PS", "Heter", "Tasks"]


class PaddleOptions(TypedDict, total=False):
    """Options common to all PaddleJobs."""

    namespace: str
    clean_pod_policy: CleanPodPolicy | None
    intranet: Intranet | None
    with_gloo: int | None
    elastic: Elastic | None
    gang: Gang | None
    samples: Samples | None


@dataclass(frozen=True)
class TrainingJob:
    """A PaddleJob or a Volcano Job: its manifest, and the companions applied with it.

    Example:
        >>> job = TrainingJob.collective("resnet", Role("demo:1", replicas=2, command=["python", "train.py"]))
        >>> job.mode, [str(finding) for finding in job.validate()]
        ('Collective', [])
    """

    manifest: Manifest
    companions: tuple[Manifest, ...] = ()

    def __post_init__(self) -> None:
        require_job(self.manifest)

    @classmethod
    def paddle(
        cls,
        name: str,
        *,
        worker: Role | None = None,
        ps: Role | None = None,
        heter: Role | None = None,
        **options: Unpack[PaddleOptions],
    ) -> TrainingJob:
        """Make a PaddleJob of any roles; the methods below build the usual combinations."""
        manifest, beside = paddle_job(name, worker=worker, ps=ps, heter=heter, **options)
        return cls(manifest, tuple(beside))

    @classmethod
    def single(cls, name: str, worker: Role, **options: Unpack[PaddleOptions]) -> TrainingJob:
        """Make a job of one worker."""
        return cls.paddle(name, worker=replace(worker, replicas=1), **options)

    @classmethod
    def collective(cls, name: str, worker: Role, **options: Unpack[PaddleOptions]) -> TrainingJob:
        """Make a job of workers that exchange gradients with each other."""
        return cls.paddle(name, worker=worker, **options)

    @classmethod
    def ps(cls, name: str, *, ps: Role, worker: Role, **options: Unpack[PaddleOptions]) -> TrainingJob:
        """Make a job of parameter servers and workers."""
        return cls.paddle(name, ps=ps, worker=worker, **options)

    @classmethod
    def heter(cls, name: str, *, ps: Role, worker: Role, heter: Role, **options: Unpack[PaddleOptions]) -> TrainingJob:
        """Make a job of parameter servers, workers and heter workers, whose command translates their role for Paddle.

        Raises:
            InputError: `heter` has no explicit command for the translation to wrap.
        """
        if not heter.command:
            raise InputError(
                "the heter role needs a command: its environment has to be translated for Paddle before it starts",
                hint="Write out the image's own command.",
            )
        return cls.paddle(name, ps=ps, worker=worker, heter=heter, **options)

    @classmethod
    def volcano(cls, name: str, tasks: Sequence[Task], **options: Any) -> TrainingJob:
        """Make a Volcano Job; see `volcano_job` for the options."""
        return cls(volcano_job(name, tasks, **options))

    @classmethod
    def ctr(
        cls, name: str, *, pserver: Role, trainer: Role, entry: str, output: PvcMount, **options: Any
    ) -> TrainingJob:
        """Make the CTR example's Volcano Job; see `ctr_job`."""
        manifest = ctr_job(name, pserver=pserver, trainer=trainer, entry=entry, output=output, **options)
        below = CTR_OUTPUT.removeprefix(output.path.rstrip("/")).strip("/")
        path = "/".join(filter(None, (output.sub_path.strip("/"), below)))
        return cls(manifest).with_output(f"pvc://{output.claim}/{path}")

    @classmethod
    def from_yaml(cls, source: str | Path) -> TrainingJob:
        """Read a job from a file (a `Path`) or from YAML text (a string), alone or with other objects.

        Raises:
            InputError: it holds no job, several, or an unsupported kind of job.
        """
        return cls.from_manifests(read_manifests(source))

    @classmethod
    def from_manifests(cls, documents: Iterable[Mapping[str, Any]]) -> TrainingJob:
        """Make a job from objects of which exactly one is a training job.

        Raises:
            InputError: none of them is, or several are.
        """
        found = [copy.deepcopy(dict(each)) for each in documents]
        jobs = [each for each in found if is_job(each)]
        if len(jobs) > 1:
            names = ", ".join(str(section(job, "metadata").get("name")) for job in jobs)
            raise InputError(f"the manifest holds {len(jobs)} jobs ({names}); wanted one", hint="Split the file.")
        if not jobs:
            if found:
                require_job(found[0])
            raise InputError("the manifest holds no training job")
        return cls(jobs[0], tuple(each for each in found if each is not jobs[0]))

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The namespace in the manifest; empty if it names none."""
        return str(section(self.manifest, "metadata").get("namespace") or "")

    @property
    def is_volcano(self) -> bool:
        """True for a Volcano Job."""
        return bool(self.manifest["kind"] == "Job")

    @property
    def replicas(self) -> dict[str, int]:
        """The number of pods of each role or task."""
        return {name: int(role.get("replicas") or 0) for name, _, role in roles(self.manifest)}

    @property
    def mode(self) -> Mode:
        """The training mode, in Paddle's terms."""
        counts = self.replicas
        if self.is_volcano:
            return "Tasks"
        if "heter" in counts:
            return "Heter"
        if "ps" in counts:
            return "PS"
        return "Collective" if counts.get("worker", 0) > 1 else "Single"

    @property
    def image(self) -> str:
        """The image of its workers."""
        found = {name: first_container(role).get("image") for name, _, role in roles(self.manifest)}
        return str(found.get("worker") or found.get("trainer") or next(iter(found.values()), "") or "")

    @property
    def output(self) -> str:
        """The location of the trained model: ``pvc://claim/path``, an ``http`` or ``s3`` address; empty if unknown."""
        return str(section(self.manifest, "metadata", "annotations").get(OUTPUT) or "")

    @property
    def digest(self) -> str:
        """The digest that distinguishes this description from another of the same name."""
        text = canonical_json({"job": self.manifest, "beside": list(self.companions)})
        return hashlib.sha256(text).hexdigest()[:16]

    def with_output(self, where: str) -> TrainingJob:
        """Return the job with the location of its trained model."""
        return self._annotated(OUTPUT, where)

    def with_class(self, chosen: str | JobClass, *, queue: str = "") -> TrainingJob:
        """Return the job in a job class: ``guaranteed``, ``opportunistic``, or your own.

        Args:
            chosen: The class.
            queue: The Volcano queue of that class on your cluster; a job that names one itself stays in it.
        """
        known = job_class(chosen, queue=queue) if isinstance(chosen, str) else chosen
        beside = [_group_in_class(each, known) if each.get("kind") == "PodGroup" else each for each in self.companions]
        return replace(self, manifest=with_class(self.manifest, known), companions=tuple(beside))

    def with_queue(self, queue: str) -> TrainingJob:
        """Return the job in a Volcano queue, overriding its own."""
        beside = [
            each | {"spec": section(each, "spec") | {"queue": queue}} if each.get("kind") == "PodGroup" else each
            for each in self.companions
        ]
        return replace(self, manifest=with_queue(self.manifest, queue), companions=tuple(beside))

    def in_namespace(self, namespace: str) -> TrainingJob:
        """Return the job and its companions in a namespace."""

        def moved(obj: Manifest) -> Manifest:
            return obj | {"metadata": section(obj, "metadata") | {"namespace": namespace}}

        return TrainingJob(moved(self.manifest), tuple(moved(each) for each in self.companions))

    def validate(self, around: Surroundings | Flavour | None = None) -> list[Finding]:
        """Return the errors in the job, the consequences to expect and the fields that would be added; the worst first.

        Args:
            around: The known facts about the cluster.
        """
        manifest = without_nulls(self.manifest)
        wrong = check_shape(manifest)
        if wrong:
            return wrong
        place = self._around(around)
        check = check_volcano_job if self.is_volcano else check_paddle_job
        found = [*check(manifest, place), *adapted(manifest, place)[1]]
        order = {"error": 0, "warning": 1, "note": 2}
        return sorted(dict.fromkeys(found), key=lambda finding: order[finding.severity])

    def to_manifest(self, around: Surroundings | Flavour | None = None) -> list[Manifest]:
        """Return the objects to apply, in order: the companions, then the job, adapted to this cluster.

        Raises:
            InputError: the job would crash its controller, hang or be refused; the message names every reason.
        """
        refuse_errors(self.name, self.validate(around))
        sent = adapted(without_nulls(self.manifest), self._around(around))[0]
        return [*map(copy.deepcopy, self.companions), sent]

    def to_yaml(self) -> str:
        """Return the job as YAML, as it was read or built."""
        return yaml.safe_dump_all([*self.companions, self.manifest], sort_keys=False, allow_unicode=True)

    def _around(self, around: Surroundings | Flavour | None) -> Surroundings:
        known = around if isinstance(around, Surroundings) else Surroundings(flavour=around)
        return replace(known, companions=self.companions)

    def _annotated(self, key: str, value: str) -> TrainingJob:
        manifest = copy.deepcopy(self.manifest)
        manifest["metadata"].setdefault("annotations", {})[key] = value
        return replace(self, manifest=manifest)


def _group_in_class(group: Manifest, chosen: JobClass) -> Manifest:
    wanted = {"priorityClassName": chosen.priority_class} | ({"queue": chosen.queue} if chosen.queue else {})
    return group | {"spec": wanted | section(group, "spec")}
