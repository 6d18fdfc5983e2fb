"""`outboxd letters list|show|replay` and `outboxd replays show`: dead letters and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from outboxd.cli.client import DEFAULT_URL, DaemonClient, UrlOption
from outboxd.cli.config_paths import load_configuration
from outboxd.cli.letter_access import DaemonLetters, DatabaseLetters, LetterAccess
from outboxd.cli.output import CommandFailed, ExitCode, JsonFlag, finish
from outboxd.cli.tables import ago, print_fields, print_hint, print_table

if TYPE_CHECKING:
    from outboxd.http.models import LetterQuery

__all__ = ["register"]

PipelineOption = Annotated[
    str | None, typer.Option("--pipeline", "-p", help="Only this pipeline's; with -c its database is read directly.")
]
DatabaseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="PATH", help="With --pipeline: read its database instead of asking a daemon."
    ),
]
"""Not taken from the environment, as other commands take it: it would turn a question to the daemon into another one."""
_LONGEST = 60


def register(app: typer.Typer) -> None:
    """Add both groups."""
    letters = typer.Typer(no_args_is_help=True, help="Dead letters: list, show, replay.")
    letters.command("list")(_list)
    letters.command("show")(_show)
    letters.command("replay")(_replay)
    app.add_typer(letters, name="letters")
    replays = typer.Typer(no_args_is_help=True, help="Replays of letters.")
    replays.command("show")(_show_replay)
    app.add_typer(replays, name="replays")


def _list(
    *,
    pipeline: PipelineOption = None,
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    status: Annotated[str | None, typer.Option(help="Only in this status: NEW, FAILED, RESOLVED, ...")] = None,
    error_class: Annotated[str | None, typer.Option(help="Only with this error class.")] = None,
    key: Annotated[str | None, typer.Option(help="Only with this message key.")] = None,
    since: Annotated[str | None, typer.Option(help="Only since this moment (ISO 8601 with a zone).")] = None,
    until: Annotated[str | None, typer.Option(help="Only before this moment (ISO 8601 with a zone).")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="The most letters.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on where a page ended.")] = None,
    url: UrlOption = DEFAULT_URL,
    config: DatabaseOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List letters, newest first."""

    def body() -> Any:
        query = _query(
            pipeline=pipeline,
            topic=topic,
            status=None if status is None else status.upper(),
            error_class=error_class,
            key=key,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
        )
        return _access(url, config, pipeline).find(query)

    finish("letters list", body, as_json=as_json, show=_show_list)


def _show(
    letter: Annotated[UUID, typer.Argument(metavar="ID", help="The letter's id.")],
    pipeline: PipelineOption = None,
    url: UrlOption = DEFAULT_URL,
    config: DatabaseOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one letter whole."""
    finish("letters show", lambda: _access(url, config, pipeline).get(letter), as_json=as_json, show=_show_letter)


def _replay(
    letters: Annotated[list[UUID], typer.Argument(metavar="ID...", help="Letters of one home.")],
    pipeline: PipelineOption = None,
    url: UrlOption = DEFAULT_URL,
    config: DatabaseOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the handler again for these letters, in the pipeline that failed (`in_place`)."""

    def body() -> Any:
        return _access(url, config, pipeline).replay(list(dict.fromkeys(letters)))

    finish("letters replay", body, as_json=as_json, show=_show_job)


def _show_replay(
    job: Annotated[UUID, typer.Argument(metavar="ID", help="The replay's id.")],
    pipeline: PipelineOption = None,
    url: UrlOption = DEFAULT_URL,
    config: DatabaseOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how far a replay is."""
    finish("replays show", lambda: _access(url, config, pipeline).job(job), as_json=as_json, show=_show_job)


def _access(url: str, config: list[str] | None, pipeline: str | None) -> LetterAccess:
    """The daemon at the URL; with a pipeline and a configuration its database."""
    if not config or pipeline is None:
        if config:
            raise CommandFailed(
                "with -c the letters of one pipeline are read",
                exit_code=ExitCode.INPUT,
                code="usage",
                suggestion="add --pipeline NAME, or leave -c out to ask the running daemon",
            )
        return DaemonLetters(DaemonClient(url))
    return DatabaseLetters(load_configuration(config), pipeline)


def _query(**given: object) -> LetterQuery:
    from pydantic import ValidationError

    from outboxd.http.models import LetterQuery

    try:
        return LetterQuery.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        option = "--" + "-".join(str(part) for part in first["loc"]).replace("_", "-")
        raise CommandFailed(
            f"{option}: {first['msg']}",
            exit_code=ExitCode.INPUT,
            code="usage",
            suggestion="see `outboxd letters list --help`",
        ) from None


def _show_list(page: Mapping[str, Any]) -> None:
    items = page["items"]
    if not items:
        print("no letters")
        return
    print_table(
        ["id", "status", "pipeline", "record", "key", "error", "attempts", "failed"],
        [
            (
                each["id"],
                each["status"],
                each["pipeline"],
                _record(each),
                _short(each["key_text"] or each["key"]),
                f"{each['error_class'].rpartition('.')[2]}: {_short(each['error_message'])}",
                each["attempts"],
                ago(each["last_failed_at"]),
            )
            for each in items
        ],
    )
    if page["next"] is not None:
        print_hint(f"more: outboxd letters list --cursor {page['next']}")
    print_hint(f"one of them whole: outboxd letters show {items[0]['id']}")


def _show_letter(letter: Mapping[str, Any]) -> None:
    headers = [f"{each['name']}: {_readable(each['value'], each['text'])}" for each in letter["headers"]]
    print_fields(
        [
            ("id", letter["id"]),
            ("status", letter["status"]),
            ("pipeline", letter["pipeline"]),
            ("group", letter["group"]),
            ("handler", letter["handler"]),
            ("record", _record(letter)),
            ("key", _readable(letter["key"], letter["key_text"])),
            ("value", _readable(letter["value"], letter["value_text"])),
            ("headers", "\n".join(headers) or None),
            ("stage", letter["stage"]),
            ("decided by", letter["rule"]),
            ("attempts", letter["attempts"]),
            ("replays", letter["replay_count"]),
            ("first failed", ago(letter["first_failed_at"])),
            ("last failed", ago(letter["last_failed_at"])),
            ("sink", letter["sink"]),
            ("error", f"{letter['error_class']}: {letter['error_message']}"),
            ("traceback", letter["error_traceback"]),
        ]
    )
    if letter["status"] in {"NEW", "FAILED"}:
        print_hint(f"when the cause is gone: outboxd letters replay {letter['id']}")


def _show_job(job: Mapping[str, Any]) -> None:
    print_fields(
        [
            ("replay", job["id"]),
            ("state", job["state"]),
            ("mode", job["mode"]),
            ("letters", job["total"]),
            ("resolved", job["resolved"]),
            ("failed", job["failed"]),
            ("created", f"{ago(job['created_at'])} by {job['actor']}"),
            ("reason", job["reason"]),
        ]
    )
    if job["state"] not in {"DONE", "CANCELLED"}:
        print_hint(f"follow it with: outboxd replays show {job['id']}")


def _record(letter: Mapping[str, Any]) -> str:
    if letter["partition"] < 0:
        return f"{letter['topic']} (row {letter['outbox_id']})"
    return f"{letter['topic']}-{letter['partition']}@{letter['offset']}"


def _readable(encoded: str | None, text: str | None) -> str | None:
    if encoded is None:
        return None
    return f"base64:{encoded}" if text is None else text


def _short(text: str | None) -> str:
    if text is None:
        return "-"
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
