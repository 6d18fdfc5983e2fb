"""`${...}` is replaced once, after parsing, in values only."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxd.config.interpolation import InterpolationFailed, builtin_schemes, interpolate


def resolved(text: str, environ: dict[str, str] | None = None, directory: Path = Path("/nowhere")) -> str:
    return interpolate(text, builtin_schemes(environ or {}, directory)).text


def failure(
    text: str, environ: dict[str, str] | None = None, directory: Path = Path("/nowhere")
) -> InterpolationFailed:
    with pytest.raises(InterpolationFailed) as caught:
        resolved(text, environ, directory)
    return caught.value


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${env:A}", "1"),
        ("x${env:A}y${env:A}z", "x1y1z"),
        ("${env:NONE:default}", "default"),
        ("${env:NONE:localhost:9092}", "localhost:9092"),
        ("${env:NONE:}", ""),
        ("${env:A:default}", "1"),
        ("${env:EMPTY:default}", ""),
        ("$$", "$"),
        ("$${env:A}", "${env:A}"),
        ("$$${env:A}", "$1"),
        ("where id = $key::bigint", "where id = $key::bigint"),
        ("costs 5$", "costs 5$"),
        ("${env:NESTED}", "${env:A}"),
        ("${env:NONE:${env:A}", "${env:A"),
    ],
)
def test_placeholders_are_replaced_once(text: str, result: str) -> None:
    assert resolved(text, {"A": "1", "EMPTY": "", "NESTED": "${env:A}"}) == result


@given(st.text())
def test_a_value_from_outside_is_never_interpolated_again(value: str) -> None:
    assert resolved("<${env:A}>", {"A": value}) == f"<{value}>"


@given(st.text())
def test_a_text_with_doubled_dollars_comes_out_as_it_was(text: str) -> None:
    assert resolved(text.replace("$", "$$")) == text


@given(st.text().filter(lambda text: "}" not in text))
def test_the_default_runs_to_the_closing_brace(default: str) -> None:
    assert resolved(f"${{env:NONE:{default}}}!") == f"{default}!"


def test_an_unset_variable_is_named() -> None:
    error = failure("${env:SHOP_DSN}")
    assert (error.code, error.message) == ("value_missing", "the environment variable SHOP_DSN is not set")


@pytest.mark.parametrize("text", ["${env:A", "${A}", "${}", "${env:1A}", "${env:}"])
def test_a_malformed_placeholder_is_refused(text: str) -> None:
    assert failure(text, {"A": "1"}).code == "placeholder_invalid"


def test_an_unknown_scheme_is_refused_with_the_closest_one() -> None:
    error = failure("${fiel:/x}")
    assert (error.code, error.suggestion) == ("scheme_unknown", "did you mean 'file'?")


def test_one_trailing_newline_of_a_file_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"secret\n\n")
    (tmp_path / "b").write_bytes(b"secret\r\n")
    (tmp_path / "c").write_bytes(b" secret ")
    assert [resolved(f"${{file:{tmp_path}/{name}}}") for name in "abc"] == ["secret\n", "secret", " secret "]
    assert resolved("${file:c}", directory=tmp_path) == " secret "


def test_a_key_of_a_yaml_or_env_file_is_its_text(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("password: 0123\nother: x\n")
    (tmp_path / "app.env").write_text("# note\nexport PASSWORD='a=b # c'\nOTHER=1\n\nBROKEN\n")
    assert resolved("${file:s.yaml:password}", directory=tmp_path) == "0123"
    assert resolved("${file:app.env:PASSWORD}", directory=tmp_path) == "a=b # c"
    assert resolved("${file:app.env:OTHER}", directory=tmp_path) == "1"


def test_a_file_whose_name_has_a_colon_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a:b").write_text("x")
    assert resolved("${file:a:b}", directory=tmp_path) == "x"


def test_what_is_missing_in_a_file_is_named_and_its_content_is_not(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("password: hunter2\n")
    (tmp_path / "broken.yaml").write_text("password: [hunter2\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfehunter2")
    for name in ("s.yaml:pasword", "broken.yaml:password", "binary", "absent", "absent:key"):
        error = failure(f"${{file:{name}}}", directory=tmp_path)
        assert error.code == "value_missing"
        assert name.partition(":")[0] in error.message
        assert "hunter2" not in error.message + error.suggestion


def test_a_scheme_of_a_plugin_is_asked_and_its_errors_hide_their_message() -> None:
    def vault(argument: str) -> str:
        if argument == "absent":
            raise LookupError("there is no secret 'absent'")
        if argument == "broken":
            raise RuntimeError("token hunter2 was refused")
        return argument.upper()

    assert interpolate("${vault:abc}", {"vault": vault}).text == "ABC"
    for argument, message in (("absent", "there is no secret 'absent'"), ("broken", "RuntimeError")):
        with pytest.raises(InterpolationFailed, match=message) as caught:
            interpolate(f"${{vault:{argument}}}", {"vault": vault})
        assert "hunter2" not in caught.value.message
