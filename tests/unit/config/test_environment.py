"""Settings of the process: command line > environment > mounted secret files > YAML > default."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.conftest import Check, Load

YAML = "http: {port: 1001}\n"


def mounted(tmp_path: Path, **files: str) -> dict[str, str]:
    directory = tmp_path / "secrets"
    for name, content in files.items():
        file = directory.joinpath(*name.split("__"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return {"OUTBOXD_SECRETS_DIR": str(directory)}


def test_the_order_is_cli_environment_files_yaml_default(tmp_path: Path, load_text: Load) -> None:
    files = mounted(tmp_path, http__port="1002\n")
    environ = {**files, "OUTBOXD_HTTP__PORT": "1003"}
    ports = [
        load_text({"a.yaml": "daemon: {}\n"}).http.port,
        load_text({"a.yaml": YAML}).http.port,
        load_text({"a.yaml": YAML}, files).http.port,
        load_text({"a.yaml": YAML}, environ).http.port,
        load_text({"a.yaml": YAML}, environ, {"http.port": "1004"}).http.port,
    ]
    assert ports == [8083, 1001, 1002, 1003, 1004]


def test_settings_from_outside_get_the_type_that_is_wanted(load_text: Load) -> None:
    configuration = load_text(
        "telemetry: {metrics: {prometheus: true}}\n",
        {
            "OUTBOXD_TELEMETRY__METRICS__PROMETHEUS": "false",
            "OUTBOXD_TELEMETRY__TRACES__SAMPLE_RATIO": "0.25",
            "OUTBOXD_DAEMON__NAME": "007",
            "OUTBOXD_DAEMON__DRAIN_TIMEOUT": "90s",
            "outboxd_http__port": "9000",
        },
    )
    assert configuration.telemetry.metrics.prometheus is False
    assert configuration.telemetry.traces.sample_ratio == 0.25
    assert configuration.daemon.name == "007"
    assert configuration.daemon.drain_timeout.total_seconds() == 90
    assert configuration.http.port == 9000


def test_a_secret_volume_of_kubernetes_is_read(tmp_path: Path, load_text: Load) -> None:
    version = tmp_path / "secrets" / "..2026" / "daemon"
    version.mkdir(parents=True)
    (version / "name").write_text("from-secret\n")
    (tmp_path / "secrets" / "..data").symlink_to("..2026")
    (tmp_path / "secrets" / "daemon").symlink_to("..data/daemon")
    environ = {"OUTBOXD_SECRETS_DIR": str(tmp_path / "secrets")}
    assert load_text({"a.yaml": YAML}, environ).daemon.name == "from-secret"


@pytest.mark.parametrize(
    ("variable", "value", "code", "place"),
    [
        ("OUTBOXD_HTTP__PORT", "hunter2", "wrong_type", "environment (OUTBOXD_HTTP__PORT)"),
        ("OUTBOXD_HTTP__PROT", "hunter2", "unknown_key", "environment (OUTBOXD_HTTP__PROT)"),
        ("OUTBOXD_HTPP__PORT", "hunter2", "unknown_key", "environment (OUTBOXD_HTPP__PORT)"),
        ("OUTBOXD_DAEMON__DRAIN_TIMEOUT", "hunter2", "invalid_value", "environment (OUTBOXD_DAEMON__DRAIN_TIMEOUT)"),
        ("OUTBOXD_TELEMETRY__LOGS__LEVEL", "hunter2", "unknown_value", "environment (OUTBOXD_TELEMETRY__LOGS__LEVEL)"),
        ("OUTBOXD_HTTP", "hunter2", "invalid_value", "environment"),
        ("OUTBOXD_SECRETS_DIR", "/hunter2", "file_missing", "environment (OUTBOXD_SECRETS_DIR)"),
    ],
)
def test_a_wrong_setting_is_named_by_its_variable_and_never_shown(
    variable: str, value: str, code: str, place: str, problems_of: Check
) -> None:
    (problem,) = problems_of({"a.yaml": YAML}, {variable: value})
    assert (problem.code, problem.place.file) == (code, place)
    assert "hunter2" not in str(problem)


def test_a_wrong_secret_file_is_named_and_never_shown(tmp_path: Path, problems_of: Check) -> None:
    (problem,) = problems_of({"a.yaml": YAML}, mounted(tmp_path, http__port="hunter2"))
    assert problem.place.file == str(tmp_path / "secrets" / "http" / "port")
    assert "hunter2" not in str(problem)


def test_variables_that_kubernetes_sets_for_a_service_are_no_settings(load_text: Load) -> None:
    environ = {"OUTBOXD_PORT": "tcp://10.0.0.1:8083", "OUTBOXD_HTTP_PORT": "x", "OUTBOXD_SERVICE_HOST": "10.0.0.1"}
    assert load_text({"a.yaml": YAML}, environ).http.port == 1001


def test_a_setting_from_outside_also_mends_a_wrong_one_in_the_yaml(load_text: Load) -> None:
    assert load_text("http: {port: '${env:UNSET}'}\n", {"OUTBOXD_HTTP__PORT": "9000"}).http.port == 9000


def test_what_came_from_outside_is_shown_as_its_origin(tmp_path: Path, load_text: Load) -> None:
    environ = {**mounted(tmp_path, http__port="1002"), "OUTBOXD_DAEMON__NAME": "hunter2"}
    document = load_text({"a.yaml": YAML}, environ).document
    assert document["daemon"] == {"name": "${env:OUTBOXD_DAEMON__NAME}"}
    assert document["http"] == {"port": f"${{file:{tmp_path}/secrets/http/port}}"}
