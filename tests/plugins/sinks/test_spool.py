from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outboxd.api import Letter, ReadableSink, Refused, Sink, Stored
from outboxd.errors import SinkUnavailable
from outboxd.testing.fakes.clock import VirtualTimeLoop, virtual_time
from outboxd.testing.fakes.faults import Delayed, Hung, Raised
from outboxd.testing.fakes.files import FakeFiles
from outboxd_plugins.sinks.spool import SpoolSink, SpoolSinkSettings
from outboxd_plugins.sinks.spool_segment import Entry, decode_line, encode_letter, entries
from tests.plugins.sinks.doubles import a_context, a_letter, letters

FOLDER = "spool/pod-0/s/sink"
SEGMENT = f"{FOLDER}/0000000001.letters"


async def a_spool(files: FakeFiles, max_size: str = "1MiB") -> SpoolSink:
    model = SpoolSinkSettings.model_validate({"directory": "./spool", "max_size": max_size})
    sink = SpoolSink(model, a_context(files=files))
    await sink.open()
    return sink


async def content(sink: SpoolSink, position: str | None = None, limit: int = 3) -> tuple[Sequence[Letter], str]:
    """All letters after the position, and the position after them."""
    found: list[Letter] = []
    while True:
        page, following = await sink.read(position, limit)
        found += page
        if not page and following == position:
            return found, following
        position = following


def some(*offsets: int) -> list[Letter]:
    return [a_letter(offset) for offset in offsets]


@virtual_time
async def test_letters_come_back_in_the_order_of_their_writing() -> None:
    sink = await a_spool(FakeFiles())
    assert isinstance(sink, Sink)
    assert isinstance(sink, ReadableSink)
    assert await sink.write(some(2, 0)) == [Stored(detail="segment 1")] * 2
    await sink.write(some(1))
    assert (await content(sink))[0] == some(2, 0, 1)


@virtual_time
async def test_a_position_leads_on_also_after_a_restart() -> None:
    files = FakeFiles()
    sink = await a_spool(files)
    await sink.write(some(0, 1))
    _, position = await content(sink)
    await sink.close()
    sink = await a_spool(files)
    await sink.write(some(2))
    assert (await content(sink, position))[0] == some(2)


@given(letter=letters)
def test_a_letter_read_back_is_the_letter_written(letter: Letter) -> None:
    line = encode_letter(letter)
    assert line.count(b"\n") == 1
    assert decode_line(line[:-1]) == letter


@virtual_time
async def test_what_is_acknowledged_survives_a_power_cut() -> None:
    files = FakeFiles()
    sink = await a_spool(files)
    await sink.write(some(0, 1))
    assert (await content(await a_spool(files.power_cut())))[0] == some(0, 1)


def test_a_tail_torn_at_any_byte_costs_nothing_that_was_acknowledged() -> None:
    async def story(torn: int) -> None:
        files = FakeFiles()
        sink = await a_spool(files)
        await sink.write(some(0))
        _, position = await content(sink)
        files.lies = True  # the next write is in the page cache only
        await sink.write(some(1))
        after = files.power_cut(keep=torn)
        sink = await a_spool(after)
        left = some(0, 1) if torn >= len(line) else some(0)
        assert (await content(sink))[0] == left
        assert not after.contents[SEGMENT] or after.contents[SEGMENT].endswith(b"\n"), "the torn tail is cut off"
        # What comes next is found behind the old position as well as from the start, whatever the cut took.
        await sink.write(some(2))
        assert (await content(sink))[0] == [*left, *some(2)]
        assert (await content(sink, position))[0] == [*left[1:], *some(2)]

    line = encode_letter(a_letter(1))
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        for torn in range(len(line) + 1):
            runner.run(story(torn))


def test_a_write_that_fails_at_any_byte_is_not_acknowledged_and_leaves_the_spool_whole() -> None:
    async def story(torn: int, truncates: bool) -> None:
        files = FakeFiles()
        sink = await a_spool(files)
        await sink.write(some(0))
        files.torn = torn
        if not truncates:
            files.faults.plan("truncate", Raised(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(SinkUnavailable, match="Input/output error"):
            await sink.write(some(1, 2))
        await sink.write(some(3))
        # Whole lines that could not be cut off again may come: a letter in two places is harmless.
        found = list((await content(sink))[0])
        assert [letter for letter in found if letter.offset in {0, 3}] == some(0, 3)
        if truncates:
            assert found == some(0, 3)
        await sink.close()
        assert list((await content(await a_spool(files)))[0]) == found

    line = encode_letter(a_letter(1))
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        for torn in [*range(0, len(line), 7), len(line) - 1, len(line), len(line) + 1, 2 * len(line) - 1]:
            for truncates in (True, False):
                runner.run(story(torn, truncates))


@virtual_time
async def test_a_damaged_entry_costs_itself_only_and_is_set_aside() -> None:
    files = FakeFiles()
    sink = await a_spool(files)
    await sink.write(some(0, 1, 2))
    line = len(encode_letter(a_letter(0)))
    files.contents[SEGMENT][line + 40] ^= 1
    assert (await content(sink))[0] == some(0, 2)
    [damaged] = [path for path in files.contents if path.endswith(".damaged")]
    assert len(files.contents[damaged]) == line
    log = sink._context.logger
    assert ("error", "spool_entry_damaged") in [entry[:2] for entry in log.lines]  # type: ignore[attr-defined]


@given(data=st.binary(max_size=300), flips=st.lists(st.integers(0, 10_000), min_size=1, max_size=3))
def test_damage_never_makes_a_letter_that_was_not_written(data: bytes, flips: list[int]) -> None:
    letter = a_letter(value=data)
    line = bytearray(encode_letter(letter))
    for flip in flips:
        line[(flip // 8) % len(line)] ^= 1 << (flip % 8)
    for entry in entries(bytes(line), 0):
        assert not isinstance(entry, Entry) or entry.letter == letter


@virtual_time
async def test_a_full_spool_is_unavailable_and_takes_letters_again_once_it_was_drained() -> None:
    files = FakeFiles()
    sink = await a_spool(files, "4KiB")
    await sink.write(some(0, 1, 2))
    with pytest.raises(SinkUnavailable, match="is full"):
        await sink.write(some(3, 4, 5))
    found, position = await content(sink)
    assert found == some(0, 1, 2)
    await sink.release(position)
    assert files.used < 100
    await sink.write(some(500))
    assert (await content(sink, position))[0] == some(500)


@virtual_time
async def test_a_letter_that_could_never_fit_is_refused_alone() -> None:
    sink = await a_spool(FakeFiles(), "4KiB")
    answers = await sink.write([a_letter(0), a_letter(1, value=b"x" * 5000)])
    assert [isinstance(answer, Refused) for answer in answers] == [False, True]
    assert (await content(sink))[0] == some(0)


@virtual_time
async def test_a_full_disk_is_unavailable_for_hours_without_using_anything_up() -> None:
    files = FakeFiles(capacity=0)
    files.capacity = 500
    sink = await a_spool(files)
    for _ in range(200):
        with pytest.raises(SinkUnavailable, match="No space left"):
            await sink.write(some(1))
    files.capacity = None
    assert await sink.write(some(1)) == [Stored(detail="segment 1")]
    assert (await content(sink))[0] == some(1)


@virtual_time
async def test_room_is_given_back_only_for_what_lies_before_the_position() -> None:
    files = FakeFiles()
    sink = await a_spool(files, "16KiB")  # segments of 4 KiB
    await sink.write(some(0, 1))
    _page, position = await sink.read(None, 1)
    await sink.release(position)
    assert (await content(sink, position))[0] == some(1)
    for number in range(2, 12):
        await sink.write(some(number))
    before = files.used
    _, position = await content(sink, position, limit=1)
    await sink.write(some(12))
    await sink.release(position)
    assert files.used < before
    assert (await content(sink, position))[0] == some(12)


@virtual_time
async def test_numbers_are_never_given_twice_so_no_old_position_hides_a_letter() -> None:
    files = FakeFiles()
    position = None
    for number in range(6):
        sink = await a_spool(files)
        await sink.write(some(number))
        found, position = await content(sink, position)
        assert found == some(number)
        await sink.release(position)
        await sink.close()


@virtual_time
async def test_a_spool_that_was_wiped_is_read_from_its_start() -> None:
    sink = await a_spool(FakeFiles())
    await sink.write(some(0, 1, 2))
    _, position = await content(sink)
    await asyncio.sleep(1.0)
    sink = await a_spool(FakeFiles())  # an empty directory in its place
    await sink.write(some(3))
    assert (await content(sink, position))[0] == some(3)


@virtual_time
async def test_segments_that_somebody_took_away_do_not_hide_new_letters() -> None:
    files = FakeFiles()
    position = None
    for number in range(3):
        sink = await a_spool(files)
        await sink.write(some(number))
        _, position = await content(sink)
        await sink.close()
    for path in [path for path in files.contents if path.endswith(".letters")]:
        del files.contents[path]
    sink = await a_spool(files)
    await sink.write(some(9))
    assert (await content(sink, position))[0] == some(9)


@virtual_time
async def test_a_second_process_is_kept_out_and_gets_in_later() -> None:
    files = FakeFiles()
    files.locked.add(f"{FOLDER}/lock")
    model = SpoolSinkSettings.model_validate({"directory": "./spool"})
    sink = SpoolSink(model, a_context(files=files))
    with pytest.raises(SinkUnavailable, match="another process"):
        await sink.open()
    with pytest.raises(SinkUnavailable, match="not open"):
        await sink.write(some(0))
    files.locked.clear()
    await sink.open()
    await sink.write(some(0))
    await sink.close()
    assert not files.locked


@virtual_time
async def test_names_cannot_leave_the_directory() -> None:
    files = FakeFiles()
    model = SpoolSinkSettings.model_validate({"directory": "/var/spool"})
    sink = SpoolSink(model, a_context(files=files, name="../../etc"))
    await sink.open()
    await sink.write(some(0))
    assert all(path.startswith("/var/spool/pod-0/s/..%2F..%2Fetc/") for path in files.contents)


@virtual_time
async def test_a_disk_that_cannot_be_opened_leaves_no_lock() -> None:
    files = FakeFiles()
    files.faults.plan("names", Raised(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(SinkUnavailable):
        await a_spool(files)
    assert not files.locked


@virtual_time
async def test_an_append_that_nobody_waits_for_ends_before_the_next_one_begins() -> None:
    files = FakeFiles()
    sink = await a_spool(files)
    files.faults.plan("append", Delayed(before=10.0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.0):
            await sink.write(some(0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.0):
            await sink.write(some(1))
    await sink.write(some(2))
    assert (await content(sink))[0] == some(0, 2), "stored late, and nothing torn"


@virtual_time
async def test_closing_waits_for_the_disk() -> None:
    files = FakeFiles()
    sink = await a_spool(files)
    files.faults.plan("append", Delayed(before=3.0))
    writing = asyncio.create_task(sink.write(some(0)))
    await asyncio.sleep(1.0)
    await sink.close()
    assert writing.done()
    assert (await content(await a_spool(files)))[0] == some(0)


@virtual_time
async def test_a_disk_that_hangs_does_not_hold_whoever_gives_up() -> None:
    files = FakeFiles()
    sink = await a_spool(files)
    files.faults.plan("append", Hung())
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await sink.write(some(0))
    assert len(asyncio.all_tasks()) == 2, "the append that hangs, and this test"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_through_crashes_full_disks_and_torn_writes_every_acknowledged_letter_is_read_once_drained(seed: int) -> None:
    chance = random.Random(seed)

    async def story() -> None:
        files = FakeFiles()
        acknowledged: list[int] = []
        home: list[int] = []
        position = None
        sink = await a_spool(files, "8KiB")
        for number in range(60):
            match chance.randrange(8):
                case 0:
                    files = files.power_cut(keep=chance.choice([0, 1, 50, 10_000]))
                    sink = await a_spool(files, "8KiB")
                case 1:
                    files.torn = chance.randrange(2000)
                case 2:
                    files.capacity = chance.choice([None, files.used + 300])
                case 3:
                    page, following = await sink.read(position, chance.randint(1, 5))
                    home += [letter.offset for letter in page]
                    position = following  # committed with the inserts
                    if chance.random() < 0.7:  # else killed in between
                        await sink.release(position)
                case _:
                    try:
                        await sink.write(some(number))
                    except SinkUnavailable:
                        continue
                    acknowledged.append(number)
        files.capacity = None
        sink = await a_spool(files.power_cut(), "8KiB")
        home += [letter.offset for letter in (await content(sink, position))[0]]
        assert set(acknowledged) <= set(home)
        assert [offset for offset in home if offset in acknowledged] == acknowledged, "in order and once"

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(story())


@virtual_time
async def test_a_spool_that_was_closed_behind_a_slow_disk_is_given_back_once_the_disk_is_done() -> None:
    files = FakeFiles()
    sink = await a_spool(files)
    files.faults.plan("append", Delayed(6.0))
    writing = asyncio.create_task(sink.write(some(0)))
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await sink.close()
    with pytest.raises(SinkUnavailable, match="another process"):
        await a_spool(files)
    await writing
    await asyncio.sleep(0.1)
    again = await a_spool(files)
    assert (await content(again))[0] == some(0)
    await again.close()
