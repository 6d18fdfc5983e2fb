"""`outboxd status|pause|resume|stop|restart`: what pipelines of a running daemon do, and what they are wanted to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from outboxd.cli.client import DEFAULT_URL, DaemonClient, UrlOption
from outboxd.cli.output import JsonFlag, finish
from outboxd.cli.tables import ago, print_hint, print_table

__all__ = ["register"]

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept with the target and shown in the status.")]

_SHOWN_PROBLEMS = 5
_VERBS = {
    "pause": "Drain a pipeline and keep everything; `resume` goes on.",
    "resume": "Start a pipeline that is paused, stopped, or failed and waiting for a person.",
    "stop": "Drain a pipeline and end it; `resume` starts it anew.",
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("status")(_status)
    for verb, text in _VERBS.items():
        app.command(verb, help=text)(_change(verb))
    app.command("restart")(_restart)


def _status(url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Show every pipeline of a running daemon."""
    answer: dict[str, Any] = {}

    def body() -> Any:
        answer.update(DaemonClient(url).get("v1", "pipelines"))
        return answer["items"]

    def show(statuses: list[Mapping[str, Any]]) -> None:
        _show_statuses(statuses)
        _show_reload(answer["reload"])

    finish("status", body, as_json=as_json, show=show)


def _change(verb: str) -> Callable[..., None]:
    def command(
        pipeline: Pipeline, reason: Reason = None, url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False
    ) -> None:
        def body() -> Any:
            return DaemonClient(url).put("v1", "pipelines", pipeline, verb, body={"reason": reason})

        finish(verb, body, as_json=as_json, show=_show_change)

    return command


def _restart(pipeline: Pipeline, url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Drain a pipeline and start it anew, in this replica; one that failed starts at once."""

    def body() -> Any:
        return DaemonClient(url).post("v1", "pipelines", pipeline, "restart")

    finish("restart", body, as_json=as_json, show=_show_change)


def _show_statuses(statuses: list[Mapping[str, Any]]) -> None:
    if not statuses:
        print("no pipelines are configured")
        return
    print_table(
        ["pipeline", "kind", "target", "state", "since", "restarts", "reason"],
        [
            (
                each["name"],
                each["kind"],
                each["target"],
                each["state"],
                ago(each["since"]),
                each["restarts"],
                _reason(each),
            )
            for each in statuses
        ],
    )
    for each in statuses:
        hint = _hint(each)
        if hint is not None:
            print_hint(hint)


def _show_reload(reload: Mapping[str, Any]) -> None:
    """Only when the files say something else than what is in force."""
    problems = reload["problems"]
    if not reload["is_successful"]:
        print(f"\nthe configuration was changed {ago(reload['read_at'])} and is wrong; the one before is in force:")
        for each in problems[:_SHOWN_PROBLEMS]:
            print(
                f"  {each['file']}:{each['line']}:{each['column']}  {each['code']}  {each['message']}  {each['suggestion']}"
            )
        if len(problems) > _SHOWN_PROBLEMS:
            print(f"  and {len(problems) - _SHOWN_PROBLEMS} more: outboxd check -c PATH")
    if reload["needs_restart"]:
        print_hint(f"changed, and counting from the next start on: {', '.join(reload['needs_restart'])}")


def _reason(status: Mapping[str, Any]) -> str:
    if status["reason"] is None:
        return "-"
    text = f"{status['reason']}: {status['message']}"
    next_start = status["detail"].get("next_start_at")
    return text if next_start is None else f"{text} (next start {ago(next_start)})"


def _hint(status: Mapping[str, Any]) -> str | None:
    name = status["name"]
    match status["state"]:
        case "FAILED" if "waits_for" in status["detail"]:
            return f"{name} waits for a person; when the cause is gone: outboxd restart {name}"
        case "FAILED":
            return f"{name} is tried again by itself; at once: outboxd restart {name}"
        case "PAUSED" | "STOPPED" if status["target"] != "started":
            return f"{name} goes on with: outboxd resume {name}"
        case _:
            return None


def _show_change(pipeline: Mapping[str, Any]) -> None:
    status = pipeline["status"]
    reach = "in this replica" if pipeline["scope"] == "this replica" else "in all replicas"
    print(f"{pipeline['name']}: target {status['target']} {reach}; it is {status['state']} now")
    print_hint("follow it with: outboxd status")
