"""``bench consumer``: every contender in turn, repeat after repeat, on topics that were filled once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.children import python_module, start_child
from bench.handlers import SLOW_SECONDS
from bench.options import Options
from bench.payload import BYTES, KEYS, PARTITIONS, SLOW_KEYS
from bench.peer_consumer import COMMIT_SECONDS, CONCURRENCY
from bench.readers import BATCH, RECORD, SLOW, Load, Outboxd, Peer, Reader, Unavailable
from bench.results import Absent, Results
from bench.servers import BROKER_FLAGS, Servers, running_servers
from bench.sink import COMMIT_MS, ConnectSink
from bench.topic_log import end_offsets, log_reader

__all__ = ["CONTENDERS", "Loads", "contenders", "measure_consumers"]

CONTENDERS = ("aiokafka", "outboxd", "faststream", "connect")
_SLOW_SHARE = 0.08
"""Of the records, for the handler that waits: 64 at once for 5 ms are 12,800 records a second."""
_FILL_SECONDS = 120


def contenders(name: str) -> list[Reader]:
    """The readers of one contender, in the order of their turns."""
    readers: Mapping[str, list[Reader]] = {
        "aiokafka": [Peer("raw aiokafka", measure, library="aiokafka") for measure in (RECORD, BATCH, SLOW)],
        "outboxd": [Outboxd("outboxd", measure) for measure in (RECORD, BATCH, SLOW)],
        "faststream": [
            Peer("FastStream", RECORD, library="faststream", share=0.2),
            Peer("FastStream, commits each", RECORD, library="faststream", commits=True, share=0.02),
            Peer("FastStream", BATCH, library="faststream"),
            Peer("FastStream, commits each", BATCH, library="faststream", commits=True),
            Peer("FastStream, 64 workers, no order", SLOW, library="faststream"),
        ],
        "connect": [ConnectSink("Connect file sink, warm", BATCH)],
    }
    return readers[name]


async def measure_consumers(options: Options) -> Results:
    """Measure what ``options`` choose; one that fails is left out by name, and the others go on."""
    results = Results(command="consumer", settings=_settings(options))
    with TemporaryDirectory(prefix="outboxd-bench-") as name:
        folder = Path(name)
        async with running_servers(folder / "servers", postgres=False) as servers:
            readers = [reader for name in options.chosen(CONTENDERS) for reader in contenders(name)]
            await _measure(options, results, folder, servers, readers)
    return results


async def _measure(options: Options, results: Results, folder: Path, servers: Servers, readers: list[Reader]) -> None:
    loads = Loads(folder, servers, options.rows)
    ready: list[Reader] = []
    try:
        for number, reader in enumerate(readers):
            try:
                reader.check()
                ready.append(reader)
                await reader.set_up(_made(folder / f"reader-{number}"), servers)
            except Unavailable as error:
                _note(options, results, reader, str(error))
        for repeat in range(options.repeats):
            for reader in ready:
                try:
                    run = await reader.read(await loads.of(reader), repeat=repeat)
                except Exception as error:  # noqa: BLE001 -- one measurement that fails must not cost the others
                    _note(options, results, reader, f"{type(error).__name__}: {error}", repeat)
                    continue
                results.consumptions.append(run)
                options.say(
                    f"{run.contender}, {run.measure}: {run.rate:,.0f} records/s, {run.cpu['consumer']} us/record, "
                    f"{run.peak_mib:.0f} MiB; missing {run.missing}, extra {run.extra}, uncommitted {run.uncommitted}"
                )
    finally:
        for reader in ready:
            await reader.close()


class Loads:
    """The full topics, each made when it is first needed."""

    def __init__(self, folder: Path, servers: Servers, records: int) -> None:
        self._folder = folder
        self._servers = servers
        self._records = records
        self._loads: dict[tuple[int, int], Load] = {}

    async def of(self, reader: Reader) -> Load:
        """The topic for this reader."""
        is_slow = reader.measure == SLOW
        share = _SLOW_SHARE if is_slow else reader.share
        records, partitions = int(self._records * share), 1 if is_slow else PARTITIONS
        if (records, partitions) not in self._loads:
            keys = SLOW_KEYS if is_slow else KEYS
            self._loads[records, partitions] = await self._fill(records, partitions, keys)
        return self._loads[records, partitions]

    async def _fill(self, records: int, partitions: int, keys: int) -> Load:
        kafka = self._servers.kafka
        topic = f"load-{records}-{partitions}"
        await kafka.create_topic(topic, partitions=partitions)
        done = self._folder / f"{topic}.done"
        command = python_module("bench.raw_producer", kafka.bootstrap_servers, topic, records, keys, done)
        producer = await start_child(self._folder, topic, command)
        try:
            await producer.file(done, _FILL_SECONDS)
        finally:
            await producer.stop()
        async with log_reader(kafka.bootstrap_servers, topic) as reader:
            load = Load(topic=topic, partitions=tuple((await end_offsets(reader)).values()))
        if load.records != records:
            raise RuntimeError(f"{topic} holds {load.records} records, not {records}")
        return load


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _note(options: Options, results: Results, reader: Reader, reason: str, repeat: int | None = None) -> None:
    results.absent.append(Absent(contender=reader.name, measure=reader.measure, reason=reason, repeat=repeat))
    options.say(f"{reader.name}, {reader.measure}: not measured: {reason}")


def _settings(options: Options) -> dict[str, object]:
    return {
        "rows": options.rows,
        "repeats": options.repeats,
        "bytes": BYTES,
        "keys": KEYS,
        "partitions": PARTITIONS,
        "slow_records": int(options.rows * _SLOW_SHARE),
        "slow_keys": SLOW_KEYS,
        "slow_partitions": 1,
        "slow_seconds": SLOW_SECONDS,
        "slow_concurrency": CONCURRENCY,
        "commit_seconds": COMMIT_SECONDS,
        "sink_commit_ms": COMMIT_MS,
        "broker_jvm": BROKER_FLAGS,
    }
