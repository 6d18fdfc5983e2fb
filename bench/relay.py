"""``bench relay``: every contender in turn, repeat after repeat, drained and then watched at a steady rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.connect import JVM_FLAGS
from bench.debezium import TUNED, WARM_UP_ROWS, Debezium
from bench.inserting import CONNECTIONS
from bench.options import Options
from bench.payload import BYTES, KEYS, PARTITIONS
from bench.relays import Outboxd, RawProducer, Relay
from bench.results import Absent, Results
from bench.servers import BROKER_FLAGS, POSTGRES_SETTINGS, Servers, running_servers
from bench.watching import LEFT_OUT, RelayWatch

__all__ = ["CONTENDERS", "RATES", "measure_relays"]

CONTENDERS: dict[str, type[Relay]] = {"raw": RawProducer, "outboxd": Outboxd, "debezium": Debezium}
RATES = (500, 2_000)
"""Single-row transactions a second."""


async def measure_relays(options: Options) -> Results:
    """Measure what ``options`` choose; one that fails is left out by name, and the others go on."""
    results = Results(command="relay", settings=_settings(options))
    with TemporaryDirectory(prefix="outboxd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # the database's user passes through
        async with running_servers(folder / "servers", postgres=True) as servers:
            await _measure(options, results, folder, servers)
    return results


async def _measure(options: Options, results: Results, folder: Path, servers: Servers) -> None:
    relays = [CONTENDERS[name](folder / name, servers) for name in options.chosen(CONTENDERS)]
    try:
        for relay in list(relays):
            relay.folder.mkdir()
            options.say(f"{relay.name}: set up")
            try:
                await relay.set_up()
            except Exception as error:  # noqa: BLE001 -- whatever it is, the others can be measured
                _note(results, Absent(contender=relay.name, measure="everything", reason=_reason(error)))
                await relay.close()
                relays.remove(relay)
        watch = RelayWatch(folder, servers)
        for repeat in range(options.repeats):
            for relay in relays:
                await _one_turn(options, results, watch, relay, repeat)
    finally:
        for relay in relays:
            await relay.close()


async def _one_turn(options: Options, results: Results, watch: RelayWatch, relay: Relay, repeat: int) -> None:
    async def drain() -> None:
        run = await watch.drain(relay, rows=options.rows, repeat=repeat)
        results.drains.append(run)
        options.say(
            f"{relay.name}: drain {repeat}: {run.rate:,.0f} rows/s, {run.cpu['relay']} us/row, "
            f"{run.peak_mib:.0f} MiB; missing {run.missing}, extra {run.extra}, out of order {run.out_of_order}"
        )

    async def latency(rate: int) -> None:
        run = await watch.latency(relay, rate=rate, seconds=options.seconds, repeat=repeat)
        results.latencies.append(run)
        options.say(
            f"{relay.name}: {rate}/s {repeat}: p50 {run.p50} p99 {run.p99} max {run.max} ms; "
            f"{run.achieved}/s; missing {run.missing}, extra {run.extra}"
        )

    turns: Sequence[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("drain", drain),
        *((f"{rate}/s", lambda rate=rate: latency(rate)) for rate in RATES),
    ]
    for measure, turn in turns:
        try:
            await turn()
        except Exception as error:  # noqa: BLE001 -- one measurement that fails must not cost the others
            absent = Absent(contender=relay.name, measure=measure, reason=_reason(error), repeat=repeat)
            _note(results, absent)


def _note(results: Results, absent: Absent) -> None:
    results.absent.append(absent)
    Options.say(f"{absent.contender}: {absent.measure} FAILED: {absent.reason}")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _settings(options: Options) -> dict[str, object]:
    return {
        "rows": options.rows,
        "repeats": options.repeats,
        "latency_seconds": options.seconds,
        "latency_seconds_left_out": LEFT_OUT,
        "latency_rates": RATES,
        "latency_connections": CONNECTIONS,
        "bytes": BYTES,
        "keys": KEYS,
        "partitions": PARTITIONS,
        "rows_per_transaction": 100,
        "compression": "none",
        "replication": 1,
        "broker_jvm": BROKER_FLAGS,
        "postgres": POSTGRES_SETTINGS,
        "debezium": TUNED,
        "debezium_warm_up_rows": WARM_UP_ROWS,
        "connect_jvm": JVM_FLAGS,
    }
