"""From paths to one source: which files are read, and how they are merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from outboxd.config.footprint import MAX_FILE, Footprint, yaml_files
from outboxd.config.interpolation import InterpolationFailed, Scheme, builtin_schemes, interpolate
from outboxd.config.problems import KeyPath, Place, Problem
from outboxd.config.source import Source, put, without_free_keys
from outboxd.config.yaml import Document, Value, read_yaml

__all__ = ["find_files", "interpolate_source", "read_files"]


def find_files(paths: Sequence[Path], problems: list[Problem], footprint: Footprint) -> Sequence[Path]:
    """The files behind the paths, each once: a file as it is, of a folder all `*.yaml` that are not hidden, by name."""
    found: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            footprint.note_folder(path)
            files = yaml_files(path)
            if not files:
                problems.append(_file_problem(path, "folder_empty", "the folder has no *.yaml", "put a file into it"))
        elif path.exists():
            files = [path]
        else:
            footprint.note(path)
            files = []
            problems.append(_file_problem(path, "file_missing", "there is no such file or folder", "correct the path"))
        for file in files:
            found.setdefault(file.resolve(), file)
    return tuple(found.values())


def read_files(files: Sequence[Path], problems: list[Problem], footprint: Footprint) -> Source:
    """All files as one source. What is wrong with them goes to ``problems``."""
    source = Source()
    for file in files:
        document = _read(file, footprint)
        problems += document.problems
        if isinstance(document.value, dict):
            _add(source, document, document.value, problems)
        elif not document.problems:
            message = "the file is not a mapping of keys to values"
            problems.append(_file_problem(file, "wrong_type", message, "start with `connections:` or `pipelines:`"))
    return source


def _read(file: Path, footprint: Footprint) -> Document:
    try:
        raw = footprint.read(file, MAX_FILE)
        if len(raw) > MAX_FILE:
            return Document(
                problems=[_file_problem(file, "file_too_large", "the file is larger than 8 MiB", "split it")]
            )
        return read_yaml(raw.decode("utf-8-sig"), str(file))
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        return Document(problems=[_file_problem(file, "file_unreadable", message, "see its owner and its mode")])
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        place = Place(file=str(file), line=line, column=column)
        problem = Problem(
            place=place, code="yaml_invalid", message="the file is not UTF-8", suggestion="save the file as UTF-8"
        )
        return Document(problems=[problem])


def _add(source: Source, document: Document, value: Mapping[str, Value], problems: list[Problem]) -> None:
    """Merge one file: sections by key, what is in a section by key; a key that two files define is an error."""
    stripped = without_free_keys(dict(value))
    assert isinstance(stripped, dict)
    source.values.setdefault((), document.values[()])
    for section, content in stripped.items():
        present = source.data.get(section)
        if section not in source.data or present is None:
            source.data[section] = content
            _take(source, document, (section,))
        elif isinstance(present, dict) and isinstance(content, dict):
            for key, item in content.items():
                if key in present:
                    problems.append(_twice(source, document, (section, key)))
                else:
                    present[key] = item
                    _take(source, document, (section, key))
        elif content is not None:
            problems.append(_twice(source, document, (section,)))


def _take(source: Source, document: Document, path: KeyPath) -> None:
    for mine, theirs in ((source.values, document.values), (source.keys, document.keys)):
        mine.update({where: place for where, place in theirs.items() if where[: len(path)] == path})


def _twice(source: Source, document: Document, path: KeyPath) -> Problem:
    return Problem(
        place=document.keys[path],
        code="defined_twice",
        message=f"is also defined at {source.key_place(path)}",
        suggestion="keep one of them, or rename one",
        path=path,
    )


def interpolate_source(
    source: Source, environ: Mapping[str, str], schemes: Mapping[str, Scheme], footprint: Footprint
) -> None:
    """Replace the placeholders of every string value; what was written stays in `shown`."""
    source.shown = _copy(source.data)
    for path, text in list(_strings(source.data, ())):
        if "$" not in text:
            continue
        place = source.place(path)
        known = {**schemes, **builtin_schemes(environ, Path(place.file).parent, footprint)}
        try:
            result = interpolate(text, known)
        except InterpolationFailed as error:
            source.failed.add(path)
            source.problems.append(
                Problem(place=place, code=error.code, message=error.message, suggestion=error.suggestion, path=path)
            )
        else:
            put(source.data, path, result.text)
            if result.values:
                source.outside[path] = (*result.values, result.text)


def _strings(value: Value, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    items: Iterable[tuple[str | int, Value]] = ()
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from _strings(item, (*path, key))


def _copy(value: Mapping[str, Value]) -> dict[str, Value]:
    def copied(item: Value) -> Value:
        if isinstance(item, dict):
            return {key: copied(child) for key, child in item.items()}
        return [copied(child) for child in item] if isinstance(item, list) else item

    return {key: copied(item) for key, item in value.items()}


def _file_problem(file: Path, code: str, message: str, suggestion: str) -> Problem:
    return Problem(place=Place(file=str(file)), code=code, message=message, suggestion=suggestion)
