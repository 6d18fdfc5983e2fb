"""What can happen to a process or a connection: each fault begins, lasts a while, and is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from outboxd.dev.server import Server
from outboxd.errors import DevServerFailed
from outboxd.testing.chaos.proxy import Flow, Proxy

__all__ = ["Fault", "blackhole", "cut", "delay", "freeze", "kill", "lost_answers", "refuse", "terminate"]

Step = Callable[[], Awaitable[None]]
Seconds = tuple[float, float]
"""From, to: drawn evenly between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault on one victim.

    ``name`` says what happens, in words. ``begin`` and ``end`` bring it about and undo it, each within ``deadline``;
    between them pass ``lasts`` seconds. ``weight`` is how often it is drawn beside others.
    """

    name: str
    begin: Step
    end: Step
    lasts: Seconds = (0.0, 0.0)
    weight: int = 1
    deadline: timedelta = timedelta(seconds=90)


def kill(victim: Server, *, lasts: Seconds = (0.0, 2.0), weight: int = 1) -> Fault:
    """``kill -9``, children included, and another start. Works on a `Daemon` and on the servers of `ChaosStack`."""

    async def begin() -> None:
        _require_running(victim)
        await victim.kill()

    return Fault(name=f"kill -9 {victim.name}", begin=begin, end=victim.start, lasts=lasts, weight=weight)


def terminate(victim: Server, *, lasts: Seconds = (0.0, 0.5), weight: int = 1) -> Fault:
    """The orderly end (SIGTERM), waited for, and another start."""

    async def begin() -> None:
        _require_running(victim)
        await victim.stop()

    return Fault(name=f"stop {victim.name}", begin=begin, end=victim.start, lasts=lasts, weight=weight)


def freeze(victim: Server, *, lasts: Seconds = (1.0, 6.0), weight: int = 1) -> Fault:
    """SIGSTOP and SIGCONT, children included: connections stay open and nothing answers."""

    async def begin() -> None:
        _require_running(victim)
        victim.pause()

    async def end() -> None:
        victim.resume()

    return Fault(name=f"freeze {victim.name}", begin=begin, end=end, lasts=lasts, weight=weight)


def blackhole(proxy: Proxy, *, lasts: Seconds = (1.0, 6.0), weight: int = 1) -> Fault:
    """Nothing passes; what was sent meanwhile arrives afterwards."""

    async def begin() -> None:
        proxy.blackhole()

    return Fault(name=f"blackhole {proxy.name}", begin=begin, end=proxy.restore, lasts=lasts, weight=weight)


def lost_answers(proxy: Proxy, *, lasts: Seconds = (0.5, 3.0), weight: int = 1) -> Fault:
    """Requests arrive and are carried out, their answers do not come back; then the connections are reset."""

    async def begin() -> None:
        proxy.blackhole(Flow.ANSWERS)

    async def end() -> None:
        await proxy.cut()
        await proxy.restore()

    return Fault(name=f"lose the answers at {proxy.name}", begin=begin, end=end, lasts=lasts, weight=weight)


def cut(proxy: Proxy, flow: Flow = Flow.ANSWERS, *, after: int = 0, weight: int = 1) -> Fault:
    """Reset: every connection at once, or with ``after`` the one on which so many bytes have passed in this direction."""

    async def begin() -> None:
        if after:
            proxy.cut_after(after, flow)
        else:
            await proxy.cut()

    async def end() -> None:
        """A reset is over when it is done."""

    where = f" after {after} bytes of {flow.value}" if after else ""
    return Fault(name=f"reset connections at {proxy.name}{where}", begin=begin, end=end, weight=weight)


def refuse(proxy: Proxy, *, lasts: Seconds = (0.5, 5.0), weight: int = 1) -> Fault:
    """Connections are reset and new ones refused, as when the server's process is gone."""
    return Fault(name=f"refuse at {proxy.name}", begin=proxy.refuse, end=proxy.restore, lasts=lasts, weight=weight)


def delay(proxy: Proxy, seconds: float, *, lasts: Seconds = (2.0, 6.0), weight: int = 1) -> Fault:
    """Each piece takes ``seconds`` longer, both ways."""

    async def begin() -> None:
        proxy.delay(seconds)

    return Fault(
        name=f"delay everything by {seconds:g} s at {proxy.name}",
        begin=begin,
        end=proxy.restore,
        lasts=lasts,
        weight=weight,
    )


def _require_running(victim: Server) -> None:
    # Nobody but the schedule ends it: one that is gone has ended by itself, which is what the run is looking for.
    if not victim.is_running:
        raise DevServerFailed(f"{victim.name} had ended by itself", suggestion=f"Its log: {victim.log}.")
