"""Stories of rollouts, told from seeds: nodes that fail, leave and lie, labels that get lost, an engine that is killed.

The engine, the planner, the judge and the journal are the real ones; simulated are the cloud, the nodes and the time.
What is promised is checked at every label that is written, and at the end.
"""

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from cloudedge.edge_bie.client import AppStats, Container, Instance, Node, Report
from cloudedge.edge_bie.fleet import RolloutPlan, RolloutPolicy, in_waves
from cloudedge.edge_bie.fleet import _rollout_engine as engine_module
from cloudedge.edge_bie.fleet._node_verdict import Probed
from cloudedge.errors import NotFound, Unavailable
from cloudedge.journal import Journal

APP = "paddle-serving"
LABEL = f"cloudedge-{APP}"
NEW, OLD, IMAGE = "new0000002", "old0000001", "img0000001"
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
ONLINE_S, REPORT_S, APPLY_S = 40.0, 20.0, 30.0
TROUBLES = ("crash", "probe", "refuse", "stuck", "slow-lie")
LIMIT_S = 40_000.0


class Killed(BaseException):
    """The engine dies here."""


@dataclass
class Machine:
    """An edge node, as it really is."""

    name: str
    label: str
    """What the cloud says."""
    online: bool = True
    trouble: str = ""
    """How it takes the new revision."""
    away: tuple[float, float] = (0.0, 0.0)
    runs: str = ""
    accepted: int = 1
    """The highest number it took."""
    taking: tuple[str, float] = ("", 0.0)
    refused: str = ""
    report: Report | None = None
    reported_at: float = -1e9
    was_good: set = field(default_factory=set)
    was_away: bool = False
    labels: list = field(default_factory=list)


class World:
    """The cloud, the nodes, the clock."""

    def __init__(self, seed: int, *, calm: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self.calm = calm
        self.kills = 0 if calm else rng.choice((0, 0, 1, 2, 4))
        self.numbers = {OLD: 1, IMAGE: 2, NEW: 3}
        self.stands_for = {}
        """Revisions that were published to go back: the one each stands for."""
        self.told = {}
        self.broken = []
        self.reverts = []
        self.first_touches, self.goes_back = [], []
        count = rng.randint(1, 9)
        self.machines = {
            f"node-{n:02}": Machine(f"node-{n:02}", OLD if rng.random() < 0.8 else "") for n in range(count)
        }
        for machine in self.machines.values():
            machine.runs = machine.label
            if rng.random() < 0.2:
                machine.trouble = rng.choice(TROUBLES)
            if not calm and rng.random() < 0.25:
                begin = rng.uniform(0, 600)
                machine.away = (begin, begin + rng.choice((30, 100, 800, 2000)))
        self.stranger = Machine("stranger", OLD, runs=OLD)
        self.advance(60)

    # Time.

    def monotonic(self):
        return self.now

    def random(self):
        return self.rng.random()

    def sleep(self, seconds):
        self.advance(seconds)

    def advance(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 20.0, end)
            for machine in self.machines.values():
                self.live(machine)
            for at, name, label in list(self.reverts):
                if at <= self.now:
                    self.reverts.remove((at, name, label))
                    self.machines[name].label = label

    # What a node does.

    def live(self, machine):
        machine.online = not machine.away[0] <= self.now < machine.away[1]
        if not machine.online:
            machine.was_away = True
            return
        wanted = machine.label
        if wanted != machine.runs and machine.taking[0] != wanted and not (wanted and machine.refused == wanted):
            machine.taking = (wanted, self.now + self.rng.uniform(0.2, 2.0) * APPLY_S)
        if machine.taking[0] == wanted and wanted != machine.runs and self.now >= machine.taking[1]:
            self.take(machine, wanted)
        if machine.runs and self.is_good(machine, machine.runs):
            machine.was_good.add(machine.runs)
        if self.now - machine.reported_at >= REPORT_S * (1 if self.calm else self.rng.choice((1, 1, 1, 1.5))):
            machine.report = self.tell(machine)
            machine.reported_at = self.now

    def take(self, machine, wanted):
        number = self.numbers.get(wanted, 0)
        if wanted and number < machine.accepted:
            machine.refused = wanted
            return
        if wanted == NEW and machine.trouble in ("refuse", "stuck"):
            machine.refused = wanted if machine.trouble == "refuse" else ""
            return
        machine.accepted = max(machine.accepted, number)
        machine.runs, machine.refused, machine.taking = wanted, "", ("", 0.0)

    def is_good(self, machine, revision):
        return machine.runs == revision and not (revision == NEW and machine.trouble)

    def tell(self, machine):
        key = machine.runs, machine.refused, machine.trouble
        if key not in self.told:
            self.told[key] = self.words(machine)
        apps, stats = self.told[key]
        return Report(f"{self.now:09.1f}", apps=apps, app_stats=stats)

    def words(self, machine):
        """Return what a node says of its apps: a broken one is `Running` all the same."""
        apps, stats = {}, []
        for revision in sorted({machine.runs, machine.refused} - {""}):
            name, trouble = f"{APP}-{revision}", machine.trouble if revision == NEW else ""
            verify = Container("cloudedge-verify", "Terminated", "Completed")
            if revision == machine.refused:
                verify = Container("cloudedge-verify", "Terminated", "Refused")
                instance = Instance(f"{name}-0", "Running", init_containers=(verify,))
                stats.append(AppStats(name, cause="refused", instances=(instance,)))
                continue
            model = (
                Container("model", "Waiting", "CrashLoopBackOff")
                if trouble == "crash"
                else Container("model", "Running")
            )
            probe = Container("cloudedge-probe", "Running", "ProbePassed")
            if trouble in ("probe", "slow-lie"):
                probe = Container("cloudedge-probe", "Waiting", "ProbeFailed" if trouble == "probe" else "")
            apps[name] = "1"
            instance = Instance(f"{name}-0", "Running", containers=(model, probe), init_containers=(verify,))
            stats.append(AppStats(name, "1", "Running", instances=(instance,)))
        return apps, tuple(stats)

    # What the cloud answers.

    def show(self, machine):
        ready = "online" if self.now - machine.reported_at < ONLINE_S else "offline"
        return Node(machine.name, {LABEL: machine.label} if machine.label else {}, ready, report=machine.report)

    def nodes(self, *, selector=""):
        self.point()
        if not self.calm and self.rng.random() < 0.02:
            raise Unavailable("the cloud is away")
        return [self.show(machine) for machine in [*self.machines.values(), self.stranger]]

    def node(self, name):
        return self.show(self.machines[name]) if name in self.machines else None

    def set_labels(self, name, changes, *, apps=()):
        self.point()
        machine = self.machines.get(name)
        if machine is None:
            self.broken.append(f"{name} is no target and was labelled")
            raise NotFound(name)
        before, (revision,) = machine.label, changes.values()
        if not self.calm and self.rng.random() < 0.05:
            raise Unavailable("no answer")
        self.check_label(machine, revision or "")
        machine.label = revision or ""
        if not machine.labels:
            self.first_touches.append(name)
        if revision in self.stands_for or not revision:
            self.goes_back.append(name)
        machine.labels.append((self.now, revision or ""))
        if not self.calm and self.rng.random() < 0.05:
            self.reverts.append((self.now + self.rng.uniform(0, 60), name, before))
        if not self.calm and self.rng.random() < 0.03:
            raise Unavailable("the answer was lost")
        self.point()
        return self.show(machine)

    def republish(self, old):
        self.point()
        new = f"bak{len(self.stands_for):07}"
        self.numbers[new] = max(self.numbers.values()) + 1
        self.stands_for[new] = old
        self.point()
        return new

    def point(self):
        if self.kills and self.rng.random() < 0.03:
            self.kills -= 1
            raise Killed

    # What is promised.

    def check_label(self, machine, revision):
        """Nobody is moved to a revision before the waves before have shown that it works."""
        for at, wave in enumerate(self.plan.waves):
            if wave.revision == revision and machine.name in wave.nodes and not self.is_tolerant:
                self.check_waves(at)

    def check_waves(self, at):
        for wave in self.plan.waves[:at]:
            machines = [self.machines[name] for name in wave.nodes]
            if any(wave.revision not in [label for _, label in machine.labels] for machine in machines):
                self.broken.append(f"wave {at + 1} began before everybody of {wave.name} was moved")
            good = [m for m in machines if wave.revision in m.was_good]
            bad = [m for m in machines if wave.revision not in m.was_good and not m.was_away]
            if len(good) < self.plan.policy.success * (len(good) + len(bad)):
                self.broken.append(
                    f"wave {at + 1} began and {len(bad)} of {len(good) + len(bad)} of {wave.name} do not work"
                )


class StoryClock:
    """The world's time as the engine's clock."""

    def __init__(self, world):
        self._world = world
        self.monotonic, self.sleep, self.random = world.monotonic, world.sleep, world.random

    def now(self):
        return BEGIN + timedelta(seconds=self._world.now)


class StoryJournal(Journal):
    """A journal in memory; the engine may be killed before and after every write."""

    def __init__(self, world):
        self.world = None
        super().__init__(None, clock=StoryClock(world))
        self.world = world

    def _write(self, sql, *values):
        if self.world:
            self.world.point()
        written = super()._write(sql, *values)
        if self.world:
            self.world.point()
        return written


def make_plan(world, rng):
    machines = sorted(world.machines.values(), key=lambda m: (not m.online, m.name))
    waves = rng.choice((("1",), ("1", "50%"), ("2", "5"), ("25%", "50%"), ()))
    revisions = (IMAGE, NEW) if rng.random() < 0.2 else (NEW,)
    policy = RolloutPolicy(
        waves=waves,
        bake_s=rng.choice((0.0, 60.0)),
        success=rng.choice((1.0, 0.9, 0.6)),
        abort_failed=rng.choice((0.1, 0.3)),
        abort_at_least=rng.choice((1, 5)),
        on_failure="pause" if rng.random() < 0.1 else "rollback",
        failed_after_s=600.0,
        offline_after_s=rng.choice((60.0, 300.0)),
        approval=rng.choice(("never", "never", "after-first", "every")),
        every_s=20.0,
    )
    cut = [w for revision in revisions for w in in_waves([(m.name, {}) for m in machines], waves, revision)]
    return RolloutPlan(
        APP, "yolov3:2", "pin2", revisions, tuple(cut), {m.name: m.label for m in machines}, policy=policy
    )


def tell_story(seed, *, calm=False):
    """Tell one story; return what was broken, and how it ended."""
    world = World(seed, calm=calm)
    rng = random.Random(seed + 1_000_000)
    world.plan = plan = make_plan(world, rng)
    world.is_tolerant = False
    journal = StoryJournal(world)
    world.kills, kills = 0, world.kills
    with journal.writing("story") as writer:
        number = writer.begin("rollout", plan.pin, plan=plan.to_json(), by="story").number
    world.kills = kills
    wishes = iter(
        []
        if calm
        else sorted(
            (rng.uniform(0, 1500), rng.choice(("pause", "resume", "abort"))) for _ in range(rng.choice((0, 0, 1, 2)))
        )
    )
    outcome = run(world, journal, number, plan, list(wishes))
    check_end(world, plan, outcome)
    return world.broken, outcome


def ask(journal, number, what):
    """Ask for something from another process, which nobody kills."""
    journal.world, world = None, journal.world
    journal.ask(number, what, by="somebody")
    journal.world = world


def run(world, journal, number, plan, wishes):
    """Be the operator: start the engine, approve, ask for things, start it again when it was killed or paused."""

    def asleep(seconds):
        world.advance(seconds)
        for wish in [w for w in wishes if w[0] <= world.now]:
            wishes.remove(wish)
            ask(journal, number, wish[1])
        if plan.policy.approval != "never" and world.rng.random() < 0.2:
            for wave in range(len(plan.waves)):
                ask(journal, number, f"approve:{wave}")
        if world.now > LIMIT_S:
            raise AssertionError("it never ends")

    while True:
        clock = StoryClock(world)
        clock.sleep = asleep
        try:
            with journal.writing("story") as writer:
                outcome = engine_module.Engine(
                    world,
                    writer,
                    number,
                    RolloutPlan.from_json(plan.to_json()),
                    selector="",
                    republish=world.republish,
                    probe=lambda _: Probed("unreachable"),
                    clock=clock,
                    runner=lambda calls, _: [call() for call in calls],
                ).run()
        except Killed:
            world.advance(world.rng.uniform(0, 60))
            if world.rng.random() < 0.3:
                ask(journal, number, "abort")
            continue
        if outcome.state != "paused":
            return outcome
        world.advance(60)
        world.is_tolerant = True  # somebody looked at what failed and said to go on
        ask(journal, number, world.rng.choice(("resume", "abort")))


def check_end(world, plan, outcome):
    """Good weather, everybody is back; then labels and nodes are exactly as the outcome says."""
    world.reverts = []  # what is lost after the end is for a repair
    for machine in world.machines.values():
        machine.away = (0.0, 0.0)
    world.advance(300)
    if outcome.state == "done":
        check_done(world, plan.revisions[-1], outcome)
    else:
        check_undone(world, plan)
    if world.calm and outcome.state == "undone" and world.goes_back != world.first_touches[::-1]:
        world.broken.append(f"went back in the order {world.goes_back}")
    if world.stranger.labels:
        world.broken.append("a stranger was labelled")


def check_done(world, final, outcome):
    """Everybody has the label; who could runs it; what was counted is what is."""
    machines, broken = world.machines, world.broken
    broken += [f"done, and {m.name} is labelled {m.label}" for m in machines.values() if m.label != final]
    if not outcome.failed.keys() <= {n for n, m in machines.items() if m.trouble}:
        broken.append(f"counted as failed and well: {outcome.failed}")
    if any(m.trouble for n, m in machines.items() if n not in outcome.failed and n not in outcome.offline):
        broken.append("counted as done and broken")
    if any(not m.trouble and m.runs != final for m in machines.values()):
        broken.append("somebody who could did not catch up")
    if sum(outcome.counts.values()) != len(machines) or outcome.counts.get("waiting"):
        broken.append(f"counts {outcome.counts}")


def check_undone(world, plan):
    """Who was touched has what it had, under a new number, and runs it; nobody else has another label."""
    for name, machine in world.machines.items():
        previous, label = plan.previous[name], machine.label
        if world.stands_for.get(label, label) != previous or (machine.labels and previous and label == previous):
            world.broken.append(f"undone, and {name} is labelled {label}, with {previous} before")
        if machine.runs != label:
            world.broken.append(f"undone, and {name} runs {machine.runs or 'nothing'}, not {label or 'nothing'}")
