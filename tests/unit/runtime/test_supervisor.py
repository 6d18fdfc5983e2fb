"""The supervisor over scripted runs, in virtual time: what is follows what is wanted, and nobody feels a neighbour."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.errors import ConfigurationError, DatabaseUnreachable, PipelineStopped, PipelineUnknown, StateConflict
from outboxd.lifecycle import PipelineState, TargetState
from outboxd.pipeline.run import Health, Stall
from outboxd.ports import Target
from outboxd.runtime.actor import Timing
from outboxd.runtime.backoff import restart_delay
from outboxd.telemetry.audit import TargetChanged
from outboxd.telemetry.pipelines import PipelineFailed, TargetsUnread
from outboxd.testing.fakes.clock import virtual_time
from tests.unit.runtime.doubles import Factory, ScriptedRun, World

S = PipelineState


@virtual_time
async def test_a_pipeline_without_a_stored_target_starts_and_runs() -> None:
    world = World()
    await world.open()
    assert world.state() is S.RUNNING
    assert [state for _, state in world.moves] == [S.STARTING, S.RUNNING]
    assert await world.supervisor.close(30)
    assert world.state() is S.STOPPED


@virtual_time
async def test_a_pipeline_that_was_paused_before_the_restart_stays_paused() -> None:
    world = World()
    world.targets.stored["orders"] = Target(state=TargetState.PAUSED, actor="ann", at=world.clock.now())
    await world.open()
    assert world.state() is S.PAUSED
    assert world.factories["orders"].runs == []
    assert world.supervisor.status("orders").message == "paused by ann"
    await world.supervisor.close(30)


@virtual_time
async def test_nothing_starts_while_the_targets_cannot_be_read() -> None:
    world = World()
    world.targets.is_down = True
    await world.open()
    await asyncio.sleep(20)
    assert (world.state(), world.supervisor.status("orders").reason) == (S.CREATED, "target_unknown")
    assert "does not answer" in (world.supervisor.status("orders").message or "")
    assert sum(isinstance(event, TargetsUnread) for event in world.telemetry.events) == 1
    world.targets.is_down = False
    await asyncio.sleep(3)
    assert world.state() is S.RUNNING
    await world.supervisor.close(30)


@virtual_time
async def test_a_target_is_stored_before_it_is_carried_out() -> None:
    world = World()
    await world.open()
    world.targets.is_down = True
    with pytest.raises(DatabaseUnreachable):
        await world.supervisor.set_target("orders", TargetState.PAUSED, actor="ann")
    await asyncio.sleep(1)
    assert world.state() is S.RUNNING
    await world.supervisor.close(30)


@virtual_time
async def test_pause_drains_and_resume_makes_a_new_run() -> None:
    world = World()
    await world.open()
    await world.supervisor.set_target("orders", TargetState.PAUSED, actor="ann", reason="maintenance")
    await asyncio.sleep(1)
    assert world.state() is S.PAUSED
    assert world.last().has_ended
    assert world.supervisor.status("orders").message == "paused by ann: maintenance"
    await world.supervisor.set_target("orders", TargetState.STARTED, actor="ann")
    await asyncio.sleep(1)
    assert world.state() is S.RUNNING
    assert len(world.factories["orders"].runs) == 2
    await world.supervisor.set_target("orders", TargetState.STOPPED, actor="ann")
    await asyncio.sleep(1)
    assert world.state() is S.STOPPED
    audit = [(e.before, e.after) for e in world.telemetry.events if isinstance(e, TargetChanged)]
    assert audit == [
        (TargetState.STARTED, TargetState.PAUSED),
        (TargetState.PAUSED, TargetState.STARTED),
        (TargetState.STARTED, TargetState.STOPPED),
    ]
    await world.supervisor.close(30)


@virtual_time
async def test_a_stall_shows_with_its_reason_and_goes_by_itself() -> None:
    world = World()
    await world.open()
    world.last().now = Health(is_ready=True, stall=Stall(reason="broker_unreachable", message="no broker answers"))
    await asyncio.sleep(1.5)
    status = world.supervisor.status("orders")
    assert (status.state, status.reason, status.message) == (S.STALLED, "broker_unreachable", "no broker answers")
    world.last().now = Health(is_ready=True, detail={"lag": 0})
    await asyncio.sleep(1.5)
    status = world.supervisor.status("orders")
    assert (status.state, status.reason, status.detail) == (S.RUNNING, None, {"lag": 0})
    await world.supervisor.close(30)


@virtual_time
async def test_a_start_that_takes_long_shows_as_stalled_within_fifteen_seconds() -> None:
    world = World()
    world.factories["orders"].prepare = lambda run: setattr(run, "now", Health(is_ready=False))
    await world.open()
    assert world.state() is S.STARTING
    assert not world.is_settled()
    await asyncio.sleep(14)
    assert (world.state(), world.supervisor.status("orders").reason) == (S.STALLED, "start_slow")
    assert world.is_settled()
    await world.supervisor.close(30)


@virtual_time
async def test_a_run_whose_health_raises_does_not_count_as_running() -> None:
    def broken() -> Health:
        raise TypeError("no such attribute")

    world = World()
    world.factories["orders"].prepare = lambda run: setattr(run, "health", broken)
    await world.open()
    assert (world.state(), world.supervisor.status("orders").reason) == (S.STALLED, "health_failed")
    await world.supervisor.close(30)


@pytest.mark.fixes("B061")
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), TypeError("unexpected")])
def test_whatever_one_pipeline_raises_it_fails_alone_and_is_restarted(error: BaseException) -> None:
    @virtual_time
    async def story() -> None:
        world = World(names=("orders", "payments"))
        await world.open()
        world.last("orders").ending.set_result(error)
        await asyncio.sleep(0.5)
        status = world.supervisor.status("orders")
        assert (status.state, status.reason) == (S.FAILED, "internal")
        assert type(error).__name__ in (status.message or "")
        assert "next_start_at" in status.detail
        assert world.is_alive()
        assert [each.name for each in world.supervisor.degraded] == ["orders"]
        await asyncio.sleep(2)
        assert world.state("orders") is S.RUNNING
        assert world.supervisor.status("orders").restarts == 1
        assert len(world.factories["payments"].runs) == 1
        await world.supervisor.close(30)

    story()


@pytest.mark.fixes("B061")
@virtual_time
async def test_a_run_that_ends_although_nobody_asked_is_a_failure() -> None:
    world = World()
    await world.open()
    world.last().ending.set_result(None)
    await asyncio.sleep(0.5)
    assert (world.state(), world.supervisor.status("orders").reason) == (S.FAILED, "run_ended_early")
    await world.supervisor.close(30)


@virtual_time
async def test_a_pipeline_that_cannot_be_made_fails_alone_and_is_tried_again() -> None:
    world = World(names=("orders", "payments"))
    world.factories["orders"].broken = ConfigurationError("no such connection", suggestion="declare it")
    await world.open()
    status = world.supervisor.status("orders")
    assert (status.state, status.reason) == (S.FAILED, "configuration_invalid")
    assert status.message == "no such connection: declare it"
    assert world.state("payments") is S.RUNNING
    world.factories["orders"].broken = None
    await asyncio.sleep(2)
    assert world.state("orders") is S.RUNNING
    await world.supervisor.close(30)


@virtual_time
async def test_a_stopped_pipeline_waits_for_a_person_also_when_its_error_comes_in_a_group() -> None:
    world = World()
    await world.open()
    group = ExceptionGroup("tasks", [OSError("lost"), ExceptionGroup("inner", [PipelineStopped("rule 2 said stop")])])
    world.last().ending.set_result(group)
    await asyncio.sleep(100_000)
    status = world.supervisor.status("orders")
    assert (status.state, status.reason, status.target) == (S.FAILED, "pipeline_stopped", TargetState.STARTED)
    assert status.detail == {"waits_for": "a person"}
    world.supervisor.restart("orders", actor="ann")
    await asyncio.sleep(1)
    assert world.state() is S.RUNNING
    await world.supervisor.close(30)


def test_restarts_back_off_from_a_second_to_an_hour() -> None:
    assert [restart_delay(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 120]
    assert [restart_delay(n) for n in (9, 10, 14, 15, 500)] == [360, 720, 3360, 3600, 3600]


@virtual_time
async def test_failures_before_five_stable_minutes_are_forgotten() -> None:
    world = World()
    await world.open()
    for seconds in (0.1, 0.1, 301, 0.1):
        await asyncio.sleep(seconds)
        world.last().ending.set_result(OSError("broken"))
        await asyncio.sleep(70)
    delays = [e.next_start for e in world.telemetry.events if isinstance(e, PipelineFailed)]
    assert delays == [1, 2, 1, 2]
    await world.supervisor.close(30)


@virtual_time
async def test_a_pause_ends_the_waiting_for_a_restart() -> None:
    world = World()
    world.factories["orders"].broken = OSError("disk")
    await world.open()
    await asyncio.sleep(100)
    await world.supervisor.set_target("orders", TargetState.PAUSED, actor="ann")
    await asyncio.sleep(0.1)
    assert world.state() is S.PAUSED
    await world.supervisor.close(30)


@virtual_time
async def test_a_restart_drains_first() -> None:
    world = World()
    await world.open()
    world.supervisor.restart("orders", actor="ann")
    await asyncio.sleep(1)
    assert world.factories["orders"].runs[0].has_ended
    assert [state for _, state in world.moves][2:] == [S.DRAINING, S.RESTARTING, S.STARTING, S.RUNNING]
    await world.supervisor.close(30)


@virtual_time
async def test_a_paused_pipeline_is_not_restarted_but_the_way_on_is_named() -> None:
    world = World()
    await world.open()
    await world.supervisor.set_target("orders", TargetState.PAUSED, actor="ann")
    with pytest.raises(StateConflict) as caught:
        world.supervisor.restart("orders", actor="ann")
    assert "resume" in (caught.value.suggestion or "")
    with pytest.raises(PipelineUnknown):
        world.supervisor.restart("unknown", actor="ann")
    await world.supervisor.close(30)


@pytest.mark.fixes("B007")
@virtual_time
async def test_a_run_that_does_not_drain_is_cancelled_and_the_end_is_unclean() -> None:
    world = World(names=("orders", "payments"))
    world.factories["orders"].prepare = _never_drains
    await world.open()
    began = world.clock.monotonic()
    assert not await world.supervisor.close(35)
    assert world.clock.monotonic() - began < 35
    assert world.last("payments").has_ended


@pytest.mark.fixes("B007")
@virtual_time
async def test_a_run_that_ignores_its_cancellation_is_left_and_never_doubled() -> None:
    def deaf(run: ScriptedRun) -> None:
        _never_drains(run)
        run.ignores_cancellation = True

    world = World(timing=Timing(drain=2, cancel=1))
    world.factories["orders"].prepare = deaf
    await world.open()
    world.supervisor.restart("orders", actor="ann")
    await asyncio.sleep(60)
    assert (world.state(), world.supervisor.status("orders").reason) == (S.FAILED, "run_will_not_end")
    assert len(world.factories["orders"].runs) == 1
    world.last().ending.set_result(None)
    await asyncio.sleep(120)
    assert len(world.factories["orders"].runs) == 2
    world.last().ending.set_result(None)
    await world.supervisor.close(30)


@virtual_time
async def test_a_target_that_another_replica_stored_is_followed() -> None:
    world = World(is_shared=True)
    await world.open()
    world.targets.stored["orders"] = Target(state=TargetState.STOPPED, actor="bob", at=world.clock.now())
    await asyncio.sleep(3)
    assert world.state() is S.STOPPED
    world.targets.is_down = True
    await asyncio.sleep(30)
    assert world.state() is S.STOPPED
    await world.supervisor.close(30)


@pytest.mark.fixes("B061")
@virtual_time
async def test_a_dead_actor_or_supervisor_makes_the_process_not_alive() -> None:
    world = World(names=("orders", "payments"))
    assert not world.is_alive()
    await world.open()
    assert world.is_alive()
    follower = world.supervisor._follower
    assert follower is not None
    follower.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not world.is_alive()
    await world.supervisor.close(30)


def _never_drains(run: ScriptedRun) -> None:
    run.ends_when_stopped = False


@virtual_time
async def test_a_removed_pipeline_drains_and_is_then_unknown_while_the_others_run_on() -> None:
    world = World(names=("orders", "payments"))
    await world.open()
    world.factories["orders"].runs[-1].ends_when_stopped = False
    world.supervisor.remove("orders")
    await asyncio.sleep(1)
    status = world.supervisor.status("orders")
    assert (status.state, status.reason) == (S.DRAINING, "removed")
    assert world.supervisor.present("orders") is None
    assert world.supervisor.present("payments") is not None
    with pytest.raises(StateConflict):
        world.supervisor.restart("orders", actor="ann")
    with pytest.raises(StateConflict):
        await world.supervisor.set_target("orders", TargetState.PAUSED, actor="ann")
    world.factories["orders"].runs[-1].ending.set_result(None)
    await asyncio.sleep(1)
    with pytest.raises(PipelineUnknown):
        world.supervisor.status("orders")
    assert world.gone == [("orders", True)]
    assert len(world.factories["payments"].runs) == 1
    assert world.state("payments") is S.RUNNING
    assert world.is_alive()
    assert await world.supervisor.close(30)


@virtual_time
async def test_a_pipeline_that_comes_back_while_it_drains_starts_when_that_is_over() -> None:
    world = World()
    await world.open()
    first = world.last()
    first.ends_when_stopped = False
    world.supervisor.remove("orders")
    await asyncio.sleep(1)
    world.supervisor.add(world.actor("orders"))
    await asyncio.sleep(5)
    assert world.factories["orders"].runs == []
    assert world.supervisor.status("orders").reason == "waits_for_pipeline"
    first.ending.set_result(None)
    await asyncio.sleep(1)
    assert world.state() is S.RUNNING
    assert world.gone == []
    assert await world.supervisor.close(30)


@virtual_time
async def test_a_renamed_pipeline_waits_for_the_group_even_behind_a_run_that_will_not_end() -> None:
    world = World(names=(), timing=Timing(drain=5, cancel=1))
    await world.open()
    world.supervisor.add(world.actor("before", "group shop of main"))
    await asyncio.sleep(1)
    stuck = world.last("before")
    stuck.ends_when_stopped, stuck.ignores_cancellation = False, True
    world.supervisor.remove("before")
    world.supervisor.add(world.actor("after", "group shop of main"))
    await asyncio.sleep(60)
    assert world.gone == [("before", False)]
    assert world.supervisor.status("after").message == "pipeline 'before' has not ended yet"
    stuck.ending.set_result(None)
    await asyncio.sleep(1)
    assert world.state("after") is S.RUNNING
    await world.supervisor.close(30)


@virtual_time
async def test_a_pipeline_that_is_added_keeps_the_target_of_its_name() -> None:
    world = World(names=("orders",))
    world.targets.stored["payments"] = Target(state=TargetState.PAUSED, actor="ann", at=world.clock.now())
    await world.open()
    world.supervisor.add(world.actor("payments"))
    world.supervisor.add(world.actor("refunds"))
    await asyncio.sleep(0.5)
    assert (world.state("payments"), world.state("refunds")) == (S.PAUSED, S.RUNNING)
    await world.supervisor.close(30)


@virtual_time
async def test_another_configuration_restarts_what_runs_and_leaves_paused_what_is_paused() -> None:
    world = World(names=("orders", "payments", "refunds"))
    world.targets.stored["payments"] = Target(state=TargetState.PAUSED, actor="ann", at=world.clock.now())
    await world.open()
    assert world.is_settled()
    later = {name: Factory() for name in world.names}
    for name in world.names:
        actor = world.supervisor.present(name)
        assert actor is not None
        actor.reconfigure(later[name], frozenset({name}), restarts=name != "refunds")
    await asyncio.sleep(1)
    assert world.factories["orders"].runs[0].has_ended
    assert [len(later[name].runs) for name in world.names] == [1, 0, 0]
    assert (world.state("orders"), world.state("payments"), world.state("refunds")) == (S.RUNNING, S.PAUSED, S.RUNNING)
    later["refunds"].prepare = lambda run: setattr(run, "now", Health(is_ready=False))
    world.supervisor.restart("refunds", actor="ann")
    await asyncio.sleep(1)
    assert world.state("refunds") is S.STARTING
    assert world.is_settled(), "a restart unreadies nobody"
    await world.supervisor.set_target("payments", TargetState.STARTED, actor="ann")
    await asyncio.sleep(1)
    assert [len(later[name].runs) for name in world.names] == [1, 1, 1]
    await world.supervisor.close(30)


@pytest.mark.parametrize("frees", [True, False])
@virtual_time
async def test_a_pipeline_that_waits_for_a_person_goes_on_when_its_own_settings_were_changed(frees: bool) -> None:
    world = World()
    world.factories["orders"].broken = PipelineStopped("somebody must look")
    await world.open()
    assert world.supervisor.status("orders").detail["waits_for"] == "a person"
    later, actor = Factory(), world.supervisor.present("orders")
    assert actor is not None
    actor.reconfigure(later, frozenset(), restarts=True, frees=frees)
    await asyncio.sleep(1)
    assert world.state() is (S.RUNNING if frees else S.FAILED)
    await world.supervisor.close(30)


@virtual_time
async def test_a_pipeline_that_failed_is_tried_again_at_once_with_another_configuration() -> None:
    world = World()
    world.factories["orders"].broken = RuntimeError("no such topic")
    await world.open()
    await asyncio.sleep(30)
    later, actor = Factory(), world.supervisor.present("orders")
    assert actor is not None
    actor.reconfigure(later, frozenset(), restarts=True)
    await asyncio.sleep(0.1)
    assert world.state() is S.RUNNING
    await world.supervisor.close(30)


@virtual_time
async def test_a_removed_pipeline_that_still_drains_is_part_of_the_daemons_end() -> None:
    world = World(names=("orders", "payments"), timing=Timing(drain=10, cancel=1))
    await world.open()
    world.last("orders").ends_when_stopped = False
    world.supervisor.remove("orders")
    await asyncio.sleep(1)
    assert not await world.supervisor.close(30)
    assert world.gone == []
