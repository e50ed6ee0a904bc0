"""Volcano Job manifests, built from typed values, and the variant that the CTR example uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cloudedge.errors import InputError
from cloudedge.training.manifest._pods import merged, pod_template
from cloudedge.training.manifest._values import Manifest, PvcMount, Role

__all__ = ["VOLCANO_JOB", "LifecyclePolicy", "Task", "ctr_job", "volcano_job"]

VOLCANO_JOB = "batch.volcano.sh/v1alpha1"
CTR_OUTPUT = "/workspace/ctr/models"
"""The folder in the first trainer to which the CTR image writes its model."""
_CTR_PORT = 30236


@dataclass(frozen=True)
class LifecyclePolicy:
    """Volcano's reaction to an event of a pod, a task or the job.

    Args:
        action: ``RestartJob``, ``CompleteJob``, ``AbortJob``, ``TerminateJob``, ``RestartTask``, ``RestartPod`` ...
        event: The event or events: ``PodFailed``, ``PodEvicted``, ``TaskCompleted`` ...
        exit_code: Instead of an event: a container's exit code, not 0.
        timeout: How long the event must last, such as ``10m``.
    """

    action: str
    event: str | Sequence[str] = ()
    exit_code: int | None = None
    timeout: str = ""

    def to_manifest(self) -> Manifest:
        """Return the policy as Volcano writes it."""
        when: Manifest = {"exitCode": self.exit_code} if self.exit_code is not None else {}
        if self.event:
            when |= {"event": self.event} if isinstance(self.event, str) else {"events": list(self.event)}
        return {**when, "action": self.action} | ({"timeout": self.timeout} if self.timeout else {})


@dataclass(frozen=True)
class Task:
    """The pods of one task of a Volcano Job: `role` is their content, `policies` the reactions to their end."""

    name: str
    role: Role
    policies: Sequence[LifecyclePolicy] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    min_available: int | None = None
    max_retry: int | None = None
    depends_on: Sequence[str] = ()
    iteration: str = ""

    def to_manifest(self) -> Manifest:
        """Return the task as Volcano writes it."""
        template = pod_template(self.role)
        if self.labels:
            template = merged(template, {"metadata": {"labels": dict(self.labels)}})
        task: Manifest = {"name": self.name, "replicas": self.role.replicas, "template": template}
        task |= {"minAvailable": self.min_available} if self.min_available is not None else {}
        task |= {"maxRetry": self.max_retry} if self.max_retry is not None else {}
        task |= {"policies": [policy.to_manifest() for policy in self.policies]} if self.policies else {}
        if self.depends_on:
            task["dependsOn"] = {"name": list(self.depends_on)} | (
                {"iteration": self.iteration} if self.iteration else {}
            )
        return task


def volcano_job(
    name: str,
    tasks: Sequence[Task],
    *,
    namespace: str = "",
    min_available: int | None = None,
    queue: str = "",
    policies: Sequence[LifecyclePolicy] = (),
    plugins: Mapping[str, Sequence[str]] | None = None,
    volumes: Sequence[PvcMount] = (),
    max_retry: int | None = None,
    min_success: int | None = None,
    ttl_s: int | None = None,
    priority_class: str = "",
) -> Manifest:
    """Make a Volcano Job; without `min_available` all pods must fit, which is what Paddle needs.

    Raises:
        InputError: a job-wide volume has a sub path or is read-only, which Volcano does not support.
    """
    for volume in volumes:
        if volume.sub_path or volume.read_only:
            raise InputError(
                f"Volcano mounts the claim {volume.claim} whole and writable in every pod",
                hint="Mount it in the roles that need it: `Role(volumes=[...])`.",
            )
    spec: Manifest = {
        "schedulerName": "volcano",
        "minAvailable": sum(task.role.replicas for task in tasks) if min_available is None else min_available,
    }
    spec |= {"queue": queue} if queue else {}
    spec |= {"maxRetry": max_retry} if max_retry is not None else {}
    spec |= {"minSuccess": min_success} if min_success is not None else {}
    spec |= {"ttlSecondsAfterFinished": ttl_s} if ttl_s is not None else {}
    spec |= {"priorityClassName": priority_class} if priority_class else {}
    spec |= {"plugins": {key: list(value) for key, value in plugins.items()}} if plugins else {}
    spec |= {"policies": [policy.to_manifest() for policy in policies]} if policies else {}
    spec |= {"volumes": [{"mountPath": v.path, "volumeClaimName": v.claim} for v in volumes]} if volumes else {}
    spec["tasks"] = [task.to_manifest() for task in tasks]
    metadata: Manifest = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": VOLCANO_JOB, "kind": "Job", "metadata": metadata, "spec": spec}


def ctr_job(
    name: str,
    *,
    pserver: Role,
    trainer: Role,
    entry: str,
    output: PvcMount,
    namespace: str = "",
    queue: str = "",
    port: int = _CTR_PORT,
    priority_class: str = "",
) -> Manifest:
    """Make the CTR example's job: parameter servers and trainers that find each other by labels.

    Args:
        name: The job's name; also the value of the labels the launcher looks for.
        pserver: The parameter servers; their `service_account` must be allowed to list pods.
        trainer: The trainers; likewise.
        entry: The shell command of the training itself.
        output: The volume for the model, which would otherwise be lost with the first trainer's pod.
        namespace: The job's namespace.
        queue: The Volcano queue.
        port: The port of the servers.
        priority_class: The priority of the job.

    Raises:
        InputError: `output` does not cover the folder of the model.
    """
    if not (output.path == CTR_OUTPUT or CTR_OUTPUT.startswith(output.path.rstrip("/") + "/")):
        raise InputError(
            f"the CTR job writes its model to {CTR_OUTPUT}, and the output volume is mounted at {output.path}",
            hint=f"Mount it at {CTR_OUTPUT}.",
        )
    counts = {"PADDLE_TRAINERS_NUM": str(trainer.replicas), "PADDLE_PSERVERS_NUM": str(pserver.replicas)}
    shared = {
        "PADDLE_JOB_NAME": name,
        "PADDLE_IS_LOCAL": "0",
        "PADDLE_PORT": str(port),
        "ENTRY": entry,
        "TRAINER_PACKAGE": "/workspace",
        "TOPOLOGY": "",
        "FLAGS_rpc_deadline": "36000000",
        "GLOG_v": "0",
        "GLOG_logtostderr": "1",
        **counts,
    }
    tasks = [
        Task(
            "pserver",
            _ctr_role(pserver, shared, "PSERVER", {}),
            labels={"paddle-job-pserver": name},
        ),
        Task(
            "trainer",
            _ctr_role(replace(trainer, volumes=(*trainer.volumes, output)), shared, "TRAINER", {"CPU_NUM": "1"}),
            policies=[LifecyclePolicy("CompleteJob", "TaskCompleted")],
            labels={"paddle-job": name},
        ),
    ]
    return volcano_job(
        name,
        tasks,
        namespace=namespace,
        queue=queue,
        priority_class=priority_class,
        policies=[LifecyclePolicy("RestartJob", "PodEvicted"), LifecyclePolicy("RestartJob", "PodFailed")],
    )


def _ctr_role(role: Role, shared: Mapping[str, str], name: str, more: Mapping[str, str]) -> Role:
    fields = {
        "NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
        "POD_NAME": "metadata.name",
        "PADDLE_CURRENT_IP": "status.podIP",
    }
    refs = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    env = {**shared, "TRAINING_ROLE": name, "PADDLE_TRAINING_ROLE": name, **more, **role.env}
    over = merged({"spec": {"containers": [{"name": "paddle", "env": refs}]}}, role.pod_overrides)
    command = role.command or ("paddle_k8s",)
    return replace(role, env=env, command=command, args=role.args or ("start_fluid",), pod_overrides=over)
