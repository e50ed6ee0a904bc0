"""Rules for Volcano Jobs: what Volcano's admission would refuse, and what would not run as written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudedge.findings import Finding, error, warning
from cloudedge.training.checks._pods import check_name, check_namespace, check_role, is_count
from cloudedge.training.manifest import (
    CTR_OUTPUT,
    Manifest,
    Surroundings,
    env_names,
    first_container,
    mappings,
    pod_spec,
    roles,
    section,
)

__all__ = ["check_volcano_job"]

EVENTS = {"*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated"}
ACTIONS = {
    "AbortJob",
    "RestartJob",
    "RestartTask",
    "RestartPod",
    "RestartPartition",
    "TerminateJob",
    "CompleteJob",
    "ResumeJob",
}
_SINCE = {"PodPending": "1.11", "RestartPod": "1.11", "RestartPartition": "1.14"}
_PLUGINS = {"ssh", "env", "svc", "tensorflow", "mpi", "pytorch", "hcclrank", "ray"}


def check_volcano_job(job: Manifest, _: Surroundings) -> Iterator[Finding]:
    """Check a Volcano Job."""
    spec, metadata = section(job, "spec"), section(job, "metadata")
    tasks = list(roles(job))
    yield from check_name(metadata.get("name"), "metadata.name", _longest_suffix(tasks))
    yield from check_namespace(metadata.get("namespace"))
    if not isinstance(spec.get("tasks"), list) or not spec["tasks"] or len(tasks) != len(spec["tasks"]):
        yield error("tasks", "spec.tasks", "a job needs tasks, each with replicas and a template.")
    yield from _check_task_names(tasks)
    for _name, where, task in tasks:
        yield from check_role(where, task)
        yield from _check_task(where, task, spec)
    yield from _check_counts(spec, tasks)
    yield from _check_policies("spec.policies", spec.get("policies"))
    yield from _check_spec(spec)
    yield from _check_order(tasks)
    yield from _check_ctr(job, tasks)


_Tasks = list[tuple[str, str, Manifest]]


def _longest_suffix(tasks: _Tasks) -> int:
    counts = [(name, task["replicas"] if is_count(task.get("replicas")) else 1) for name, _, task in tasks]
    return max((len(f"-{name}-{max(count, 1) - 1}") for name, count in counts), default=0)


def _check_task_names(tasks: _Tasks) -> Iterator[Finding]:
    seen: set[str] = set()
    for name, where, task in tasks:
        if "name" in task:
            yield from check_name(task["name"], f"{where}.name", 0)
        if name in seen:
            yield error("task-name", f"{where}.name", f"{name!r} is used twice.")
        seen.add(name)


def _check_task(where: str, task: Manifest, spec: Manifest) -> Iterator[Finding]:
    yield from _check_policies(f"{where}.policies", task.get("policies"))
    least, replicas = task.get("minAvailable"), task.get("replicas")
    if least is not None and (not is_count(least) or (is_count(replicas) and least > replicas)):
        yield error("min-available", f"{where}.minAvailable", f"{least!r} of {replicas!r} pods.")
    policies = [*mappings(spec.get("policies")), *mappings(task.get("policies"))]
    events = {event for policy in policies for event in _events(policy)}
    path, restart = f"{where}.template.spec.restartPolicy", pod_spec(task).get("restartPolicy")
    if restart is None:
        problem = "the default restarts containers for ever: the task would never complete."
        yield warning("restart-always", path, problem, "Write Never.")
    if restart == "OnFailure" and events & {"PodFailed", "TaskFailed", "*"}:
        problem = "containers restart in place, so no pod ever fails: the policies never act, maxRetry never counts."
        yield warning("restart-in-place", path, problem, "Write Never.")


def _check_counts(spec: Manifest, tasks: _Tasks) -> Iterator[Finding]:
    total = sum(task["replicas"] for _, _, task in tasks if is_count(task.get("replicas")))
    least = spec.get("minAvailable")
    if least is not None and (not is_count(least) or least < 0 or least > total):
        yield error("min-available", "spec.minAvailable", f"{least!r} of {total} pods: Volcano refuses that.")
    elif least is not None and least < total:
        problem = f"{least} of {total} pods: Paddle's pods wait for each other, so the rest must fit too."
        yield warning("min-available", "spec.minAvailable", problem, f"Write {total}.")
    for field, lowest in (("maxRetry", 0), ("minSuccess", 1), ("ttlSecondsAfterFinished", 0)):
        value = spec.get(field)
        if value is not None and (not is_count(value) or value < lowest):
            yield error("number", f"spec.{field}", f"{value!r}: wanted {lowest} or more.")


def _check_spec(spec: Manifest) -> Iterator[Finding]:
    if spec.get("queue") == "root":
        yield error("queue", "spec.queue", "Volcano takes no jobs into the root queue.")
    for plugin in section(spec, "plugins"):
        if plugin not in _PLUGINS:
            yield error("plugin", f"spec.plugins.{plugin}", f"known: {', '.join(sorted(_PLUGINS))}.")
    for number, volume in enumerate(mappings(spec.get("volumes"))):
        where = f"spec.volumes[{number}]"
        if ("volumeClaimName" in volume) == ("volumeClaim" in volume):
            yield error("volume", where, "wanted exactly one of volumeClaimName and volumeClaim.")
        if not volume.get("mountPath"):
            yield error("volume", f"{where}.mountPath", "the mount path is missing.")


def _check_policies(where: str, policies: Any) -> Iterator[Finding]:
    seen: set[str] = set()
    codes: list[Any] = []
    for number, policy in enumerate(mappings(policies)):
        path, events, code = f"{where}[{number}]", _events(policy), policy.get("exitCode")
        yield from _check_policy(path, policy, events)
        if code is not None and code in codes:
            yield error("exit-code", f"{path}.exitCode", f"{code!r} has a policy already.")
        for event in events:
            if event in seen:
                yield error("event", path, f"{event} has a policy already.")
            seen.add(event)
        codes.append(code)
    if "*" in seen and len(seen) > 1:
        yield error("event", where, "* stands for every event and excludes all others.")


def _check_policy(path: str, policy: Manifest, events: list[str]) -> Iterator[Finding]:
    action, code = policy.get("action"), policy.get("exitCode")
    if action not in ACTIONS:
        yield error("action", f"{path}.action", f"{action!r}; known: {', '.join(sorted(ACTIONS))}.")
    if (code is None) == (not events):
        yield error("policy", path, "wanted exactly one of event, events and exitCode, which says when to act.")
    if code is not None and (not is_count(code) or code == 0):
        yield error("exit-code", f"{path}.exitCode", f"{code!r}: wanted a number other than 0.")
    for event in events:
        if event not in EVENTS:
            yield error("event", path, f"Volcano takes no policy for {event!r}; known: {', '.join(sorted(EVENTS))}.")
    if "PodPending" in events and not policy.get("timeout"):
        yield error("timeout", f"{path}.timeout", "PodPending needs one, such as 10m.")
    for word in (*events, action):
        if word in _SINCE:
            yield warning("volcano-version", path, f"{word} needs Volcano {_SINCE[word]} or newer.")


def _check_order(tasks: _Tasks) -> Iterator[Finding]:
    after = {name: [str(n) for n in section(task, "dependsOn").get("name") or []] for name, _, task in tasks}
    for name, where, _ in tasks:
        for other in after[name]:
            if other not in after:
                yield error("depends-on", f"{where}.dependsOn", f"task {other!r} does not exist.")
        reached, todo = set[str](), list(after[name])
        while todo:
            step = todo.pop()
            if step not in reached:
                reached.add(step)
                todo += after.get(step, [])
        if name in reached:
            yield error("depends-on", f"{where}.dependsOn", f"{name!r} waits for itself.")


def _check_ctr(job: Manifest, tasks: _Tasks) -> Iterator[Finding]:
    """Check the contract of the CTR image's launcher, if the job uses it."""
    named = {name: (where, task) for name, where, task in tasks}
    if "pserver" not in named or "trainer" not in named:
        return
    counts = {"PADDLE_PSERVERS_NUM": "pserver", "PADDLE_TRAINERS_NUM": "trainer"}
    labels = {"pserver": "paddle-job-pserver", "trainer": "paddle-job"}
    for name, (where, task) in named.items():
        env = env_names(first_container(task))
        if name not in labels or "PADDLE_JOB_NAME" not in env:
            continue
        label = section(task, "template", "metadata", "labels").get(labels[name])
        if label != env["PADDLE_JOB_NAME"]:
            problem = f"label {labels[name]} is {label!r}, PADDLE_JOB_NAME is {env['PADDLE_JOB_NAME']!r}: "
            yield error("ctr-label", f"{where}.template.metadata.labels", f"{problem}pods would not find each other.")
        for key, other in counts.items():
            wanted = named[other][1].get("replicas")
            if key in env and str(env[key]) != str(wanted):
                problem = (
                    f"{key} is {env[key]!r}, and {other} has {wanted} pods: the job would wait for the others for ever."
                )
                yield error("ctr-count", f"{where}.template.spec.containers[0].env", problem)
        if not pod_spec(task).get("serviceAccountName"):
            problem = "the launcher lists pods, which the account `default` may not do without a role."
            yield warning("ctr-account", f"{where}.template.spec.serviceAccountName", problem)
    where, trainer = named["trainer"]
    mounts = [str(m.get("mountPath")) for m in mappings(first_container(trainer).get("volumeMounts"))]
    mounts += [str(v.get("mountPath")) for v in mappings(section(job, "spec").get("volumes"))]
    is_ctr = "PADDLE_JOB_NAME" in env_names(first_container(trainer))
    if is_ctr and not any(m == CTR_OUTPUT or CTR_OUTPUT.startswith(m.rstrip("/") + "/") for m in mounts):
        problem = f"no volume at {CTR_OUTPUT}: the model would be lost with the first trainer's pod."
        yield warning("ctr-output", f"{where}.template.spec.volumes", problem)


def _events(policy: Mapping[str, Any]) -> list[str]:
    more = policy.get("events")
    found = [policy["event"]] if policy.get("event") else []
    return [str(event) for event in [*found, *(more if isinstance(more, list) else [])]]
