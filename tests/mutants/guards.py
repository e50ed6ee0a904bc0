"""The guards that releases, journals, deliveries, versions, signatures and edge statements depend on.

Each entry names a guard, the change that removes it, and the story of what happens without it. A guard without tests is
found by the simulator. `python -m tests.mutants --guard NAME` tries one; CONTRIBUTING.md says how to add one.
"""

# ruff: noqa: E501 - exact source is not wrapped

from __future__ import annotations

from tests.mutants.mutate import Guard

__all__ = ["GUARDS"]

_APPLY = "release/core/_apply.py"
_PLAN = "release/core/_plan.py"
_CONTEXT = "release/core/_context.py"
_OPERATIONS = "release/core/_operations.py"
_RULES = "release/core/_preconditions.py"
_CANARY = "release/core/_canary.py"
_LAYOUTS = "release/core/_table_layouts.py"
_JOURNAL = "journal/_journal.py"
_CLIENT = "cube/client/_client.py"
_DELIVERY = "cube/delivery/_delivery_plan.py"
_STEPS = "cube/delivery/_replica_steps.py"
_STORE = "cube/server/_version_store.py"
_ARTIFACT = "cube/server/_load_delivered.py"
_RUNTIME = "serving/runtime/_runtime.py"
_STATE = "serving/runtime/_saved_state.py"
_COSIGN = "bundle/signing/_cosign.py"
_SIGN = "bundle/signing/_sign.py"
_ADMIT = "edge_bie/node/_node_plan.py"
_INSTALL = "edge_bie/node/_install.py"
_STATEMENT = "edge_bie/model/_statement.py"

_PLAN_TESTS = "tests/release/core/test_plan.py"
_APPLY_TESTS = "tests/release/core/test_apply.py"
_AWAY_TESTS = "tests/release/core/test_away.py"
_CANARY_TESTS = "tests/release/core/test_canary.py"
_JOURNAL_TESTS = "tests/journal/test_journal.py"
_DELIVERY_TESTS = "tests/cube/delivery/test_plan.py"
_ARTIFACT_TESTS = "tests/cube/delivery/test_artifacts.py"
_STEP_TESTS = "tests/cube/delivery/test_replica_steps.py"
_STORE_TESTS = "tests/cube/server/test_version_store.py"
_RUNTIME_TESTS = "tests/serving/runtime/test_runtime.py"
_RESTART_TESTS = "tests/serving/runtime/test_restart.py"
_COSIGN_TESTS = "tests/bundle/signing/test_cosign.py"
_SIGN_TESTS = "tests/bundle/signing/test_sign.py"
_REFUSAL_TESTS = "tests/edge_bie/node/test_refusals.py"
_STATEMENT_TESTS = "tests/edge_bie/node/test_statements.py"
_SIMULATOR_TESTS = "tests/testing/test_simulator.py"

_RELEASE = [
    Guard(
        "gate-lost-version",
        _APPLY,
        "            if not place.has(pin):\n",
        "            if False:\n",
        "All replicas of a shard lose the new version between check and switch; requests move to rows that are gone.",
        (f"{_APPLY_TESTS}::test_a_version_lost_between_check_and_switch_is_noticed_before_requests_move",),
    ),
    Guard(
        "settle-who-answers",
        _APPLY,
        "if answering and not same_shares(place.active, {pin: 1.0}):",
        "if False:",
        "A place restarts with an older state after its switch, and the release calls itself done everywhere.",
        (f"{_APPLY_TESTS}::test_a_place_that_answers_with_something_else_after_its_switch_keeps_the_release_open",),
    ),
    Guard(
        "gate-unreachable-place",
        _APPLY,
        "if place.is_reachable else place.name in moved):",
        "if place.is_reachable else False):",
        "A shard goes away between check and gate, comes back empty, and requests have moved to it.",
        (f"{_APPLY_TESTS}::test_a_shard_that_goes_away_between_check_and_switch_stops_the_release",),
    ),
    Guard(
        "failed-load-is-not-done",
        _APPLY,
        "                failed[step.id] = self._failed(step, error)\n            else:",
        "                why = self._failed(step, error)\n"
        '                if step.action != "load":\n'
        "                    failed[step.id] = why\n"
        "            else:",
        "A place cannot load the version, and the release goes on as if it could.",
        (f"{_APPLY_TESTS}::test_a_place_that_cannot_load_takes_the_release_back_before_anything_is_checked",),
    ),
    Guard(
        "failed-step-takes-back",
        _APPLY,
        '            elif failed:\n                return self.back("; ".join(f"{step}: {why}" for step, why in failed.items()))',
        "            elif failed:\n                pass",
        "A check fails before the commit point, and requests move to the version all the same.",
    ),
    Guard(
        "failed-switch-stops",
        _APPLY,
        "            elif failed and self.is_committed:\n                raise self._stopped(",
        "            elif failed and self.is_committed:\n                self._stopped(",
        "A replica does not move, and the release goes on to unload what it answers with.",
    ),
    Guard(
        "drain-before-rows-go",
        _APPLY,
        "            self._context.clock.sleep(self._plan.options.drain_s)",
        "            pass",
        "A replica does not answer when it is to unload; its slow requests still read rows that go next.",
        (f"{_APPLY_TESTS}::test_rows_wait_for_the_requests_of_a_replica_that_did_not_unload",),
    ),
    Guard(
        "tags-forward-order",
        _APPLY,
        "for role in roles if undo else reversed(roles):",
        "for role in roles:",
        "Garbage is collected while tags move, and the version to go back to has none for a moment.",
        (f"{_APPLY_TESTS}::test_tags_take_over_from_each_other_so_that_no_bundle_is_without_one",),
    ),
    Guard(
        "tags-back-order",
        _APPLY,
        "for role in roles if undo else reversed(roles):",
        "for role in reversed(roles):",
        "A release is taken back while garbage is collected, and what becomes live again has no tag for a moment.",
        (f"{_APPLY_TESTS}::test_tags_take_over_from_each_other_so_that_no_bundle_is_without_one",),
    ),
    Guard(
        "next-tag-while-loading",
        _APPLY,
        '        self._set_tags({"next": self._plan.ref})\n',
        "",
        "A version without a tag is released again and collected while places load it.",
        (f"{_APPLY_TESTS}::test_tags_take_over_from_each_other_so_that_no_bundle_is_without_one",),
    ),
    Guard(
        "next-tag-is-removed",
        _APPLY,
        '        missed = self._set_tags({"next": None})',
        "        missed = None",
        "A version that was taken back stays in the hub for ever.",
    ),
    Guard(
        "keep-for-absent-places",
        _APPLY,
        "        self._keep_for(away or {}, self._plan.ref)\n",
        "",
        "A place is left out with a version that is collected before it is seen again.",
        (f"{_AWAY_TESTS}::test_a_rollback_goes_on_without_a_replica_that_is_down",),
    ),
    Guard(
        "keep-what-absent-places-answer-with",
        _APPLY,
        "        if self._plan.away and self._plan.lives:\n            self._keep_for(self._plan.away, self._plan.lives[0].ref)\n",
        "",
        "A rollback goes on without a place that answers with what was live, and that is collected.",
        (f"{_AWAY_TESTS}::test_a_rollback_goes_on_without_a_replica_that_is_down",),
    ),
    Guard(
        "verify-what-was-fetched",
        _APPLY,
        "            self._context.bundles.verify(self._wanted)",
        "            pass",
        "Bytes arrive damaged from the hub, every place gets the same damage, and none can tell.",
    ),
    Guard(
        "plan-again-with-bytes",
        _APPLY,
        "            self._context.bundles.verify(self._wanted)\n        self._look_again()",
        "            self._context.bundles.verify(self._wanted)",
        "Places are given a version as it was known before its bytes came.",
    ),
    Guard(
        "lives-after-tags",
        _APPLY,
        '        self._writer.remember("lives", [asdict(life) for life in lives])',
        "        pass",
        "A release is done, and the journal calls the version before it live.",
    ),
    Guard(
        "abort-is-obeyed",
        _APPLY,
        "if asked and not self.is_too_late(stage):",
        "if False:",
        "An operator asks to take a release back, and it goes on.",
        (f"{_AWAY_TESTS}::test_a_wish_that_comes_too_late_is_told",),
    ),
    Guard(
        "no-bake-after-commit",
        _APPLY,
        'if self.is_committed and stage in ("dense.canary", "bake"):',
        "if False:",
        "A release is resumed after all requests have moved, and sends most of them back for a canary.",
        (f"{_CANARY_TESTS}::test_after_the_commit_point_no_request_goes_back_for_a_canary",),
    ),
    Guard(
        "undo-stops-at-a-pointer",
        _APPLY,
        '            if failed and steps[0].action != "unload":\n                return failed\n',
        "",
        "A replica cannot be brought back, and the rows that it reads are unloaded.",
    ),
    Guard(
        "undo-leaves-rows-of-absent-replicas",
        _APPLY,
        'if steps[0].stage == "sparse.forget" and may_read:',
        "if False:",
        "A release is taken back without a replica that is away, and the rows it may read are unloaded.",
    ),
    Guard(
        "undo-does-not-silence-the-last",
        _APPLY,
        "if left and any(step.pin and step.shares == {} for step in mine):",
        "if False:",
        "The replicas that have what was live are away, and the last one that answers is told to stop.",
        (f"{_AWAY_TESTS}::test_the_last_replica_that_answers_is_not_silenced",),
    ),
    Guard(
        "undo-order-of-legs",
        _PLAN,
        "    for leg in _UNLOADS:\n        mine = ",
        "    for leg in reversed(_UNLOADS):\n        mine = ",
        "A release is taken back, and readers without a pin move before serving replicas do.",
        (f"{_PLAN_TESTS}::test_the_way_back_moves_serving_replicas_before_shards",),
    ),
    Guard(
        "rows-go-last",
        _PLAN,
        '_UNLOADS: tuple[Leg, ...] = ("dense", "edge", "sparse")',
        '_UNLOADS: tuple[Leg, ...] = ("sparse", "dense", "edge")',
        "Rows are unloaded while serving replicas still answer requests from them.",
    ),
    Guard(
        "requests-move-before-rows",
        _PLAN,
        '_LEGS: tuple[Leg, ...] = ("sparse", "dense", "edge")',
        '_LEGS: tuple[Leg, ...] = ("dense", "sparse", "edge")',
        "A serving replica asks the probes of a version whose rows are not loaded yet.",
        (f"{_PLAN_TESTS}::test_a_release_brings_rows_first_and_takes_them_away_last",),
    ),
    Guard(
        "lost-place-stops-answering-the-undone",
        _PLAN,
        '        if done.pin in place.active:\n            yield Step(stage, place.name, "nothing,',
        '        if False:\n            yield Step(stage, place.name, "nothing,',
        "A replica lost what it answered with; it goes on with a version that is taken back, rows and all.",
        (f"{_PLAN_TESTS}::test_a_place_that_lost_what_it_answered_with_stops_answering_with_what_is_undone",),
    ),
    Guard(
        "undo-outruns-delayed-switches",
        _PLAN,
        "    elif was_asked or not same_shares(place.active, was):",
        "    elif not same_shares(place.active, was):",
        "A delayed call switches a place to a version that was taken back meanwhile.",
        (f"{_PLAN_TESTS}::test_the_way_back_asks_every_place_again_that_was_asked_before",),
    ),
    Guard(
        "undo-keeps-what-was-there",
        _PLAN,
        "    if pin in was.pins or pin in was.active:\n        return False\n",
        "",
        "A version was loaded before the release, and taking the release back unloads it.",
        (f"{_PLAN_TESTS}::test_what_was_there_before_survives_the_way_back",),
    ),
    Guard(
        "undo-unloads-another-layout-first",
        _PLAN,
        '    if place.leg != "dense" or done.pin in done.before[place.name].active or not rows:\n        return False\n',
        "    return False\n",
        "A replica keeps a version for shards whose rows go.",
        (f"{_PLAN_TESTS}::test_a_replica_that_was_given_another_layout_forgets_it_before_the_rows_go",),
    ),
    Guard(
        "load-outruns-delayed-calls",
        _PLAN,
        "asked = [place for place in able if place in lacking or place in moves]",
        "asked = lacking",
        "A delayed call of an earlier release unloads a version that is about to answer.",
        (f"{_PLAN_TESTS}::test_a_rollback_moves_pointers_and_nothing_else",),
    ),
    Guard(
        "every-place-is-verified",
        _PLAN,
        'doubtful = [place for place in able if place in lacking or (kind == "release" and place in moves)]',
        "doubtful: list[Observed] = []",
        "Bytes arrive damaged at a place, or are another version's, and requests move to them.",
    ),
    Guard(
        "gate-is-planned",
        _PLAN,
        '        yield Step("gate", "", f"every place still has {pin} before the first moves", pin)',
        "        pass",
        "Nothing is asked again between check and switch.",
        (f"{_APPLY_TESTS}::test_a_version_lost_between_check_and_switch_is_noticed_before_requests_move",),
    ),
    Guard(
        "settle-is-planned",
        _PLAN,
        '        yield Step("settle", "", f"every place answers with {pin}", pin, seconds=_POINTER_S)',
        "        pass",
        "Nothing is asked again after the switch.",
        (f"{_PLAN_TESTS}::test_a_release_brings_rows_first_and_takes_them_away_last",),
    ),
    Guard(
        "absent-places-keep-old-versions",
        _PLAN,
        "    is_all_there = all(place.is_reachable for place in world.places if takes(place, desired))",
        "    is_all_there = True",
        "A replica that is away answers requests with an old version whose rows are unloaded.",
        (f"{_PLAN_TESTS}::test_while_a_place_is_away_nothing_old_goes",),
    ),
    Guard(
        "strangers-versions-stay",
        _PLAN,
        "pin in world.known and pin not in needed:",
        "pin not in needed:",
        "Another target shares the servers, and a release unloads its versions.",
        (f"{_PLAN_TESTS}::test_what_somebody_else_loaded_is_left_alone",),
    ),
    Guard(
        "rows-of-lagging-replicas-stay",
        _PLAN,
        "needed = [] if place in idle else [*kept, *place.active, *read]",
        "needed = [] if place in idle else [*kept, *place.active]",
        "A replica lags two versions behind, and the rows that it reads are unloaded.",
        (f"{_PLAN_TESTS}::test_a_replica_that_lags_keeps_its_rows_and_goes_back_to_what_is_live",),
    ),
    Guard(
        "layouts-of-lagging-replicas-stay",
        _PLAN,
        "    if not _read(world) <= kept:\n        idle = []  #",
        "    if False:\n        idle = []  #",
        "A replica that lags reads a layout whose servers end.",
        (f"{_PLAN_TESTS}::test_a_layout_stays_while_a_replica_that_lags_reads_it",),
    ),
    Guard(
        "layouts-of-kept-versions-stay",
        _PLAN,
        "[shards, *(life.shards for life in older)])]",
        "[shards])]",
        "The version to go back to reads a layout whose servers end.",
        (f"{_PLAN_TESTS}::test_a_layout_ends_with_the_last_version_that_is_kept_in_it",),
    ),
    Guard(
        "lagging-place-goes-back-to-live",
        _PLAN,
        "active = {live: 1.0} if live and place.has(live) else dict(place.active)",
        "active = dict(place.active)",
        "A release is taken back, and a place that lagged goes back to where it lagged.",
        (f"{_PLAN_TESTS}::test_a_replica_that_lags_keeps_its_rows_and_goes_back_to_what_is_live",),
    ),
    Guard(
        "unseen-place-keeps-its-versions",
        _PLAN,
        "return Before({live: 1.0} if live else {}, (pin,))",
        "return Before({live: 1.0} if live else {}, ())",
        "A place was away when the plan was made; the way back unloads a version that it may have had before.",
        (f"{_PLAN_TESTS}::test_a_place_that_was_away_loses_nothing_on_the_way_back",),
    ),
    Guard(
        "trim-keeps-what-is-live",
        _PLAN,
        "kept={desired.pin, world.live})",
        "kept={desired.pin})",
        "Room is made for a new version by unloading the rows of the one that answers.",
        (f"{_PLAN_TESTS}::test_room_is_not_made_of_what_is_live",),
    ),
    Guard(
        "trim-makes-room",
        _PLAN,
        "trim = [] if away else list(_trim(desired, world, able))",
        "trim: list[Step] = []",
        "A target whose memory holds two versions takes one release and no other.",
        (f"{_PLAN_TESTS}::test_room_is_made_where_three_versions_do_not_fit",),
    ),
    Guard(
        "versions-stay-in-their-layout",
        _LAYOUTS,
        "return desired.cut(life.shards) if is_there and (is_loaded or life is lives[0]) else desired",
        "return desired",
        "The live version is repaired into another layout than its readers use.",
    ),
    Guard(
        "plan-is-of-today",
        _OPERATIONS,
        "        if plan.lives != self._context.lives():",
        "        if False:",
        "Another operator released while this plan was made, and it is carried out all the same.",
        (f"{_SIMULATOR_TESTS}::test_a_plan_that_somebody_overtook_while_it_looked_is_refused",),
    ),
    Guard(
        "ended-meanwhile",
        _OPERATIONS,
        "        if not now.is_open:\n            raise Conflict(",
        "        if False:\n            raise Conflict(",
        "Another operator finished the release while this one waited for the lock, and it is undone when it is live.",
        (f"{_AWAY_TESTS}::test_what_ended_meanwhile_is_not_undone_or_opened_again",),
    ),
    Guard(
        "nothing-to-go-back-to",
        _OPERATIONS,
        "if not plan.lives and committed(self._context.journal.last_words(operation.number)):",
        "if False:",
        "The first release of all is taken back after requests have moved, and nothing answers.",
        (f"{_APPLY_TESTS}::test_a_first_release_that_moved_requests_has_nothing_to_go_back_to",),
    ),
    Guard(
        "undo-is-resumed-as-undo",
        _OPERATIONS,
        "        if why is not None:\n            return Run(self._context, writer, operation.number, Plan.from_json(operation.plan)).back(why)\n",
        "",
        "Cloudedge is killed while it takes a release back, and the resume carries it out instead.",
        ("tests/release/core/test_crash.py::test_a_way_back_that_was_interrupted_is_resumed_as_one",),
    ),
    Guard(
        "known-pins-are-remembered",
        _OPERATIONS,
        '        writer.remember("known", [*known[-_KNOWN:], plan.pin])\n',
        "",
        "No release unloads anything, and memory fills up.",
        (f"{_APPLY_TESTS}::test_a_life_of_releases",),
    ),
    Guard(
        "look-reads-lives-first",
        _CONTEXT,
        "        lives, observed = self.lives(), self.observe()\n",
        "        observed = self.observe()\n        lives = self.lives()\n",
        "A rollback comes in between; the plan has the old places and the new live version, and finds nothing to do.",
        (f"{_SIMULATOR_TESTS}::test_a_plan_that_somebody_overtook_while_it_looked_is_refused",),
    ),
]

_CANARIES = [
    Guard(
        "bad-canary-is-taken-back",
        _CANARY,
        '            raise Breach(f"the canary did badly: {bad}")',
        "            pass",
        "A canary answers nonsense, and gets all requests.",
    ),
    Guard(
        "bad-canary-pauses",
        _CANARY,
        "            raise Paused(bad)",
        "            continue",
        "A canary answers nonsense, is to pause, and gets all requests.",
    ),
    Guard(
        "canary-scores",
        _CANARY,
        "if abs(moved - mean) > limits.score_drift * deviation + by_chance:",
        "if False:",
        "A canary answers nonsense without an error.",
    ),
    Guard(
        "canary-errors",
        _CANARY,
        "    if errors > usual + limits.error_rate:",
        "    if False:",
        "A canary fails most requests.",
        (f"{_PLAN_TESTS}::test_a_canary_is_judged_by_what_it_does",),
    ),
    Guard(
        "canary-misses",
        _CANARY,
        "    if misses > normal + limits.miss_rate:",
        "    if False:",
        "A canary finds no rows.",
        (f"{_PLAN_TESTS}::test_a_canary_is_judged_by_what_it_does",),
    ),
    Guard(
        "canary-needs-requests",
        _CANARY,
        "    if canary.requests < limits.min_requests:",
        "    if not canary.requests:",
        "One failed request takes a good release back.",
        (f"{_PLAN_TESTS}::test_a_canary_is_judged_by_what_it_does",),
    ),
    Guard(
        "counts-before-the-canary",
        _CANARY,
        "    _look(context)  # counts from before the canary began say nothing about it\n",
        "",
        "Errors from before the canary are held against it.",
        (f"{_CANARY_TESTS}::test_errors_from_before_the_canary_say_nothing_about_it",),
    ),
    Guard(
        "bake-begins-anew-after-a-breach",
        _CANARY,
        '            watched = 0.0 if entry.what == "failed" else watched\n',
        "",
        "A canary that paused is resumed, and passes without being watched.",
        (f"{_CANARY_TESTS}::test_a_canary_that_paused_is_watched_anew",),
    ),
]

_REFUSALS = [
    Guard(
        f"refuse-{name}",
        _RULES,
        source,
        change,
        story,
        (f"{_PLAN_TESTS}::{test}",),
    )
    for name, source, change, story, test in (
        (
            "unreachable",
            "        if not (proposal.may_leave and is_spared):",
            "        if False:",
            "A release begins although a place does not answer.",
            "test_what_cannot_work_is_refused_before_anything_is_touched",
        ),
        (
            "unreachable-without-a-stand-in",
            'is_spared = place.leg == "edge" or any(_stands_in(other, place) for other in proposal.able)',
            "is_spared = True",
            "A rollback goes on although no replica of a shard answers.",
            "test_a_rollback_needs_a_replica_of_every_shard",
        ),
        (
            "no-places",
            "    if not proposal.world.places:",
            "    if False:",
            "A release to a target without places is done at once.",
            "test_what_cannot_work_is_refused_before_anything_is_touched",
        ),
        (
            "table-not-packed",
            "        if lookup.table not in desired.tables:",
            "        if False:",
            "A model looks up rows in a table that was not packed, and fails on its first request.",
            "test_what_cannot_work_is_refused_before_anything_is_touched",
        ),
        (
            "no-shards",
            "        if table not in {place.table for place in sparse}:",
            "        if False:",
            "A target has no shards for a new table.",
            "test_what_cannot_work_is_refused_before_anything_is_touched",
        ),
        (
            "row-too-long",
            "        if table.row_bytes > CUBE_VALUE_BYTES:",
            "        if False:",
            "Cube loads rows that it cannot answer.",
            "test_what_cannot_work_is_refused_before_anything_is_touched",
        ),
        (
            "shard-without-server",
            "        if not _has_every_shard(table, holders):",
            "        if False:",
            "Rows of a shard that no server holds are not found.",
            "test_shards_that_do_not_run_yet",
        ),
        (
            "server-of-another-layout",
            "        if found - {shards} and _has_every_shard(table, holders):",
            "        if False:",
            "A server that was loaded with another number of shards is to hold both.",
            "test_what_cannot_work_is_refused_before_anything_is_touched",
        ),
        (
            "empty-shard",
            "            if not rows:\n                yield (",
            "            if False:\n                yield (",
            "A cube server cannot load a part without rows.",
            "test_what_cannot_work_is_refused_before_anything_is_touched",
        ),
        (
            "rows-of-another-width",
            "        if before and (before.dtype, before.dim) != (table.dtype, table.dim):",
            "        if False:",
            "Readers without a pin get rows of another width.",
            "test_what_cannot_work_is_refused_before_anything_is_touched",
        ),
        (
            "no-room",
            "            if free is not None and wanted > free:",
            "            if False:",
            "A server runs out of memory with both versions loaded.",
            "test_places_of_one_machine_need_room_for_all_of_them",
        ),
        (
            "clients",
            "        for change in signature_changes(used, proposal.desired.signature):",
            "        for change in ():",
            "A feed that clients send is gone.",
            "test_clients_that_would_trip_are_not_surprised",
        ),
    )
] + [
    Guard(
        "refuse-unsigned",
        _RULES,
        "    if proposal.desired.untrusted:",
        "    if False:",
        "A target with a key takes a bundle that the wrong people signed.",
        ("tests/release/target/test_bundle_source.py::test_a_bundle_that_the_wrong_people_signed_is_refused",),
    ),
]

_JOURNALS = [
    Guard(
        "one-writer",
        "journal/_files.py",
        "    with held:\n        yield",
        "    held.release()\n    yield",
        "Two processes release to one target at once.",
        (f"{_JOURNAL_TESTS}::test_the_second_writer_is_told_who_the_first_is",),
    ),
    Guard(
        "one-writer-in-memory",
        _JOURNAL,
        "            if not self._held.acquire(blocking=False):",
        "            if not self._held.acquire(blocking=False) and not self._held.locked():",
        "A second cloudedge acts in the middle of the first one's release.",
        (f"{_JOURNAL_TESTS}::test_a_journal_in_memory_has_one_writer_too",),
    ),
    Guard(
        "one-unfinished-operation",
        _JOURNAL,
        "        if unfinished is not None:\n            what =",
        "        if False:\n            what =",
        "A release begins while another is half done.",
        (f"{_JOURNAL_TESTS}::test_one_unfinished_operation_bars_the_next",),
    ),
    Guard(
        "together-or-not-at-all",
        _JOURNAL,
        '                    self._db.execute("ROLLBACK")',
        '                    self._db.execute("COMMIT")',
        "Half of what belongs together is kept after an error.",
        (f"{_JOURNAL_TESTS}::test_what_is_written_together_is_there_as_one_or_not_at_all",),
    ),
    Guard(
        "every-commit-is-synced",
        _JOURNAL,
        'db.execute("PRAGMA synchronous = FULL")',
        'db.execute("PRAGMA synchronous = OFF")',
        "The machine loses power after a step, and the journal does not know of it.",
        (f"{_JOURNAL_TESTS}::test_every_commit_is_synced",),
    ),
    Guard(
        "notes-are-no-words",
        _JOURNAL,
        ' for entry in self.entries(number) if entry.what != "note"}',
        " for entry in self.entries(number)}",
        "A note about a canary hides that its step was begun.",
        (f"{_JOURNAL_TESTS}::test_a_note_does_not_hide_that_a_step_was_begun",),
    ),
]

_READERS = [
    Guard(
        "one-version-for-all-shards",
        _CLIENT,
        "        if set(answer.versions) <= ({pin} if pin is not None else set(list(answer.versions)[:1])):\n            return\n",
        "        return\n",
        "A reader mixes rows of two versions while shards switch, or of a server that does not understand its pin.",
    ),
    Guard(
        "the-pinned-version-answers",
        _CLIENT,
        "<= ({pin} if pin is not None else set(list(answer.versions)[:1])):",
        "<= set(list(answer.versions)[:1]):",
        "All shards answer with another version than the one that was asked for.",
    ),
    Guard(
        "mixtures-without-a-pin",
        _CLIENT,
        "        self._require_one_version(answer, pin)\n",
        "        if pin is not None:\n            self._require_one_version(answer, pin)\n",
        "A reader without a pin gets rows of two versions while shards switch.",
    ),
    Guard(
        "a-missing-shard-is-an-error",
        _CLIENT,
        '            if self.config.on_missing_shard == "error":',
        "            if False:",
        "A shard does not answer, and the model gets zeros for its rows.",
    ),
]

_DELIVERIES = [
    Guard(
        "delivery-every-shard-has-a-replica",
        _DELIVERY,
        "        if (each.table, shard) not in served",
        "        if False",
        "Rows of a shard that no replica serves are not found.",
        (f"{_DELIVERY_TESTS}::test_a_shard_that_nobody_serves_is_refused",),
    ),
    Guard(
        "delivery-other-rows-under-this-name",
        _DELIVERY,
        "        if there.checksum in (None, rows.checksum):",
        "        if True:",
        "A replica has other rows under the version's name, and answers with them.",
        (f"{_DELIVERY_TESTS}::test_what_cannot_work_is_said_before_anything_is_done",),
    ),
    Guard(
        "delivery-chain-of-deltas",
        _DELIVERY,
        "        if version.deltas >= policy.max_deltas:",
        "        if False:",
        "A version is made of ever more deltas.",
        (f"{_DELIVERY_TESTS}::test_delta_or_base_by_what_the_replica_has",),
    ),
    Guard(
        "delivery-keeps-the-previous",
        _DELIVERY,
        "    stays = {version, previous} - {None}",
        "    stays = {version}",
        "The version to go back to is unloaded.",
        (f"{_DELIVERY_TESTS}::test_what_is_forgotten",),
    ),
    Guard(
        "delivery-room",
        _DELIVERY,
        "        if free is not None and free < needed",
        "        if False",
        "A replica runs out of memory or disk in the middle of a delivery.",
        (f"{_DELIVERY_TESTS}::test_what_cannot_work_is_said_before_anything_is_done",),
    ),
    Guard(
        "delivery-rollback-to-loaded-only",
        _DELIVERY,
        "        elif version not in each.status.loaded():",
        "        elif False:",
        "A rollback activates a version that a replica does not have.",
        (f"{_DELIVERY_TESTS}::test_rollback_moves_pointers_only_and_only_to_what_is_loaded",),
    ),
    Guard(
        "delivery-compares-checksums",
        _STEPS,
        "        if found.checksum is not None and (found.rows, found.checksum) != (rows.rows, rows.checksum):",
        "        if False:",
        "A replica has loaded other rows than were packed.",
        (f"{_STEP_TESTS}::test_what_is_verified",),
    ),
    Guard(
        "delivery-reads-rows-back",
        _STEPS,
        "            if answer != wanted:",
        "            if False:",
        "A replica answers with other bytes than were packed.",
        (f"{_STEP_TESTS}::test_what_is_verified",),
    ),
    Guard(
        "artifact-has-its-rows",
        _ARTIFACT,
        "    if store.checksum != artifact.checksum or len(store) != artifact.rows:",
        "    if False:",
        "A server loads rows that are not those its artifact states.",
        (f"{_ARTIFACT_TESTS}::test_an_artifact_whose_rows_are_others_is_not_loaded",),
    ),
    Guard(
        "delta-is-its-artifacts",
        _ARTIFACT,
        "    if (file.base, file.result) != (artifact.base, artifact.checksum):",
        "    if False:",
        "Another delta lies under an artifact's name, and is applied.",
        (f"{_ARTIFACT_TESTS}::test_a_delta_under_another_artifacts_name_is_not_applied",),
    ),
    Guard(
        "server-keeps-the-active",
        _STORE,
        '            if name == self._active:\n                raise Conflict(f"version {name!r} is active and',
        '            if False:\n                raise Conflict(f"version {name!r} is active and',
        "A server unloads the version that it answers with.",
        (f"{_STORE_TESTS}::test_the_one_to_go_back_to_goes_only_if_somebody_gives_it_up",),
    ),
    Guard(
        "server-keeps-the-previous",
        _STORE,
        "            if name == self.previous and not previous:",
        "            if False:",
        "A server unloads the version to go back to without being told that it may.",
        (f"{_STORE_TESTS}::test_the_one_to_go_back_to_goes_only_if_somebody_gives_it_up",),
    ),
    Guard(
        "server-activates-loaded-only",
        _STORE,
        "            if name not in self._held or not self._held[name].is_loaded:\n                raise NotFound(",
        "            if False:\n                raise NotFound(",
        "A server writes down that it answers with a version that it does not have.",
        (f"{_STORE_TESTS}::test_a_version_that_is_not_loaded_is_not_written_down_as_active",),
    ),
    Guard(
        "unload-meets-activation",
        _STORE,
        '            if name == self._active:\n                raise Conflict(f"version {name!r} has just',
        '            if False:\n                raise Conflict(f"version {name!r} has just',
        "A version is activated while it is unloaded, and its files go.",
        (f"{_STORE_TESTS}::test_a_version_activated_while_it_is_let_go_stays_whole",),
    ),
    Guard(
        "late-orders-are-refused",
        "admin/_server.py",
        "            if number < self._obeyed:",
        "            if False:",
        "A delayed order arrives after newer ones, and undoes them.",
        (f"{_STORE_TESTS}::test_an_order_that_was_obeyed_is_remembered_across_a_restart",),
    ),
]

_SERVING = [
    Guard(
        "serving-probes-before-activation",
        _RUNTIME,
        "        if probed is not None and not probed.passed:",
        "        if False:",
        "A version that answers its probes wrongly is activated.",
        (f"{_RUNTIME_TESTS}::test_a_version_that_fails_its_probes_is_not_activated",),
    ),
    Guard(
        "serving-keeps-what-traffic-reaches",
        _RUNTIME,
        "            if pin in self._state_file.routing.pins:",
        "            if False:",
        "A version that answers requests is unloaded.",
        (f"{_RUNTIME_TESTS}::test_what_traffic_can_reach_is_not_unloaded",),
    ),
    Guard(
        "serving-drains-before-unload",
        _RUNTIME,
        "            if not entry.queue.close(self.config.unload_wait_s):",
        "            if False:",
        "A version is unloaded under its last requests.",
        ("tests/serving/runtime/test_request_version.py",),
    ),
    Guard(
        "serving-writes-before-it-routes",
        _STATE,
        "            write_state(self._file, state)\n",
        "            self.routing = routing\n            write_state(self._file, state)\n",
        "An order that could not be saved is in effect until the next restart.",
        (f"{_RESTART_TESTS}::test_an_order_that_cannot_be_remembered_is_not_obeyed",),
    ),
    Guard(
        "serving-remembers-what-is-missing",
        _STATE,
        "versions=tuple((self.missing | loaded_by_pin).values()),",
        "versions=tuple(loaded_by_pin.values()),",
        "A replica is killed twice, and forgets versions that it had not loaded again.",
        (f"{_RESTART_TESTS}::test_what_could_not_be_had_is_remembered_and_comes_back",),
    ),
    Guard(
        "serving-unloaded-since-chosen",
        _RUNTIME,
        "            except VersionUnloaded:\n                continue  #",
        "            except VersionUnloaded:\n                raise  #",
        "A request fails because its version was unloaded a moment after it was chosen.",
        (f"{_RUNTIME_TESTS}::test_a_version_that_goes_just_after_it_was_chosen",),
    ),
]

_SIGNATURES = [
    Guard(
        "signature-is-of-the-key",
        _COSIGN,
        "        public_key.verify(signature, payload, ec.ECDSA(SHA256()))",
        "        pass",
        "Anyone signs.",
        (f"{_SIGN_TESTS}::test_only_the_signers_key_verifies",),
    ),
    Guard(
        "signature-is-for-this-bundle",
        _COSIGN,
        "    if claimed != digest:",
        "    if False:",
        "The signature of one bundle is copied to another.",
        (f"{_SIGN_TESTS}::test_a_signature_travels_and_does_not_fit_another_bundle",),
    ),
    Guard(
        "signature-is-a-claim",
        _COSIGN,
        "    if kind != _CLAIM_TYPE:",
        "    if False:",
        "Words that were signed for another purpose count as a claim.",
        (f"{_COSIGN_TESTS}::test_a_good_signature_over_the_wrong_words",),
    ),
    Guard(
        "signature-payload-is-bounded",
        _COSIGN,
        "        if layer.size > PAYLOAD_LIMIT:",
        "        if False:",
        "A hub names a payload of gigabytes, and it is fetched.",
        (f"{_COSIGN_TESTS}::test_signature_manifests_that_are_refused",),
    ),
    Guard(
        "signature-is-base64",
        _COSIGN,
        "base64.b64decode(encoded, validate=True)",
        "base64.b64decode(encoded)",
        "Letters that are no base64 are skipped over in a signature.",
        (f"{_COSIGN_TESTS}::test_signature_manifests_that_are_refused",),
    ),
    Guard(
        "signature-blob-is-verified",
        _SIGN,
        'return b"".join(verified(hub.read_blob(bundle.name, blob), blob, hub.url))',
        'return b"".join(hub.read_blob(bundle.name, blob))',
        "A hub sends bytes without end for a payload of 250.",
        (f"{_SIGN_TESTS}::test_a_payload_that_does_not_end_is_not_read_to_its_end",),
    ),
    Guard(
        "unsigned-is-refused",
        _SIGN,
        "    if not ends:\n        count",
        "    if not found:\n        return\n    if not ends:\n        count",
        "A bundle without any signature passes.",
        (f"{_SIGN_TESTS}::test_only_the_signers_key_verifies",),
    ),
]

_EDGE = [
    Guard(
        f"statement-{name}",
        file,
        source,
        change,
        story,
        (f"{_REFUSAL_TESTS}::{test}",),
    )
    for name, file, source, change, story, test in (
        (
            "is-signed",
            _INSTALL,
            "        statement.check(signature, key)",
            "        pass",
            "A node runs what anyone published.",
            "test_a_wrong_signature",
        ),
        (
            "is-required",
            _INSTALL,
            "        if statement is None and self._key is not None:",
            "        if statement is None and False:",
            "A node with a key runs an app without a statement.",
            "test_a_node_with_a_key_runs_nothing_without_a_statement",
        ),
        (
            "is-for-this-app",
            _ADMIT,
            "    if statement.app != name:",
            "    if False:",
            "The statement of another app is mounted.",
            "test_a_statement_that_speaks_for_another_app_or_manifest",
        ),
        (
            "is-newer",
            _ADMIT,
            "statement.sequence <= slot.highest:",
            "False:",
            "An old statement is sent again, and a node goes back to an old model.",
            "test_an_old_statement_sent_again",
        ),
        (
            "names-its-manifest",
            _ADMIT,
            '    if statement.manifest is None or not statement.bundle.endswith(f"@{statement.manifest.digest}"):',
            "    if False:",
            "A statement names one bundle, and brings the manifest of another.",
            "test_a_statement_that_speaks_for_another_app_or_manifest",
        ),
        (
            "covers-scripts",
            _ADMIT,
            "config.texts and texts_digest(config.texts) not in statement.scripts:",
            "False:",
            "A script is changed in the cloud, and a node runs it.",
            "test_an_app_that_was_changed_after_it_was_signed",
        ),
        (
            "covers-the-app",
            _ADMIT,
            "    if content_of(app, configs, statement=own) != statement.content:",
            "    if False:",
            "A command is changed in the cloud, and a node runs it.",
            "test_an_app_that_was_changed_after_it_was_signed",
        ),
    )
] + [
    Guard(
        "statement-covers-files",
        _ADMIT,
        "        if any(item.key not in stated for item in config.objects):",
        "        if False:",
        "A file is added in the cloud, and a node downloads it.",
        (f"{_STATEMENT_TESTS}::test_files_that_the_statement_does_not_name_are_refused",),
    ),
    Guard(
        "statement-is-canonical",
        _INSTALL,
        "    if statement.to_bytes() != data:",
        "    if False:",
        "Two texts with one meaning count as one statement, and only one of them was signed.",
        (f"{_STATEMENT_TESTS}::test_a_statement_in_another_form_is_refused",),
    ),
    Guard(
        "statement-is-bounded",
        _STATEMENT,
        "        if len(data) > STATEMENT_LIMIT:",
        "        if False:",
        "A statement of gigabytes is parsed.",
        (f"{_STATEMENT_TESTS}::test_a_statement_is_bounded",),
    ),
    Guard(
        "statement-format-is-known",
        _STATEMENT,
        "            if version != _FORMAT:",
        "            if False:",
        "A statement of a later format is read as if it were today's.",
        (f"{_STATEMENT_TESTS}::test_a_statement_of_another_format_is_refused",),
    ),
    Guard(
        "statement-sizes-are-sane",
        _ADMIT,
        "    if not all(type(size) is int and 0 <= size < _SIZE_LIMIT for size in sizes.values()):",
        "    if False:",
        "A blob of a negative size makes room where there is none.",
        (f"{_STATEMENT_TESTS}::test_blobs_of_absurd_sizes_are_refused",),
    ),
]

GUARDS: tuple[Guard, ...] = (
    *_RELEASE,
    *_CANARIES,
    *_REFUSALS,
    *_JOURNALS,
    *_READERS,
    *_DELIVERIES,
    *_SERVING,
    *_SIGNATURES,
    *_EDGE,
)
