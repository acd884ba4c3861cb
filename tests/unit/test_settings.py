"""Settings: where values come from, which one wins, and what is said of a wrong one."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.errors import InvalidRequest
from tablecast.server.configuration import (
    OTHER_VARIABLES,
    PREFIX,
    SECTIONS,
    SETTINGS,
    SPELLINGS,
    Configuration,
    expected,
    load,
    told,
)
from tablecast.server.settings import Settings


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "tablecast.toml"
    file.write_text(text)
    return file


def refusal(file: Path | None = None, environment: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        load(file, environment or {}, flags)
    return caught.value.message


def test_nothing_said_is_the_defaults() -> None:
    assert load(None, {"HOME": "/root", "TABLECASTER": "1"}, {}) == Configuration(Settings(), {})


def test_flags_win_over_variables_and_those_over_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path, 'port = 1\nhost = "::1"\ndrain_seconds = 3\nlockout_seconds = 60')
    variables = {"TABLECAST_PORT": "2", "TABLECAST_DRAIN_SECONDS": "4", "TABLECAST_METRICS_PUBLIC": "true"}
    found = load(file, variables, {"port": "5"}, {"max_result_rows": "7"})
    assert found.settings == Settings(
        port=5, host="::1", drain_seconds=4, lockout_seconds=60.0, metrics_public=True, max_result_rows=7
    )
    assert found.origins == {
        "port": "the flag --port",
        "host": str(file),
        "drain_seconds": "the variable TABLECAST_DRAIN_SECONDS",
        "metrics_public": "the variable TABLECAST_METRICS_PUBLIC",
        "lockout_seconds": str(file),
        "max_result_rows": "the flag --set",
    }


def test_variables_that_mean_something_elsewhere_are_no_settings() -> None:
    assert load(None, {PREFIX + name: "x" for name in OTHER_VARIABLES}, {}).origins == {}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_meaning_bounds_and_a_default_within_them(name: str) -> None:
    setting, default = SETTINGS[name], getattr(Settings(), name)
    assert setting.meaning
    assert msgspec.convert(default, setting.annotation) == default
    if isinstance(default, int | float) and not isinstance(default, bool):
        assert " from " in expected(setting.kind)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_value_is_refused_by_file_variable_and_flag(tmp_path: Path, name: str) -> None:
    file = toml(tmp_path, f"{name} = [1]")
    assert refusal(file) == f"{file} sets {name} to [1]; it takes {expected(SETTINGS[name].kind)}"
    if isinstance(getattr(Settings(), name), str) and name not in ("log_format", "log_level"):
        return  # any text is a text
    variable = PREFIX + name.upper()
    takes = f"sets {name} to 'x1'; it takes {expected(SETTINGS[name].kind)}"
    assert refusal(environment={variable: "x1"}) == f"the variable {variable} {takes}"
    assert refusal(**{name: "x1"}) == f"the flag --{name.replace('_', '-')} {takes}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 65536", "sets port to 65536; it takes a whole number from 0 to 65,535"),
        ("port = -1", "sets port to -1; it takes a whole number from 0 to 65,535"),
        ("port = true", "sets port to True; it takes a whole number from 0 to 65,535"),
        ('port = "8080"', "sets port to '8080'; it takes a whole number"),
        ("drain_seconds = 1.5", "sets drain_seconds to 1.5; it takes a whole number from 0 to 3,600"),
        ("lockout_seconds = nan", "sets lockout_seconds to nan; it takes a number from 1 to 86,400"),
        ("body_timeout_seconds = inf", "sets body_timeout_seconds to inf; it takes a number"),
        ("metrics_public = 1", "sets metrics_public to 1; it takes true or false"),
        ('log_format = "xml"', "sets log_format to 'xml'; it takes json or text"),
        ("prot = 1", "sets 'prot', and there is no such setting: did you mean port?"),
        ("max_body = 1", "did you mean max_body_bytes?"),
        ("[serve]\nport = 1", "has a section [serve], and there is no such section: did you mean [server]?"),
        ("[http]\nport = 1", "there is no such section: there are [server], [storage], [limits]"),
        ("[server]\nprot = 1", "sets 'server.prot', and there is no such setting: did you mean server.port?"),
        ("[server]\ndata = 'x'", "sets 'server.data', and there is no such setting: did you mean storage.data?"),
        (
            "[mqtt]\nmqtt_prefix = 'x'",
            "sets 'mqtt.mqtt_prefix', and there is no such setting: did you mean mqtt.prefix?",
        ),
        ("[server.port]\nx = 1", "sets server.port to {'x': 1}; it takes a whole number"),
        ('durability = "maybe"', "durability 'maybe' is unknown: use 'fsync', 'interval(ms)' or 'none'"),
        ('tls_key = "k"', "tls_key is set and tls_certificate is not: TLS takes both"),
        ('tls_certificate = "c"', "tls_certificate is set and tls_key is not: TLS takes both"),
        ("max_parked_polls = 12001", "max_parked_polls is 12001, more than max_connections, 12000"),
        ('trusted_proxies = "10.0.0.0/8, nginx"', "trusted_proxies names 'nginx'; it takes addresses and networks"),
        (
            'allowed_origins = "https://a.example, b.example"',
            "allowed_origins names 'b.example'; it takes origins as https",
        ),
        ('allowed_origins = "https://a.example/page"', "allowed_origins names 'https://a.example/page'"),
        ("port =", "is not TOML"),
        ("\x00", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_and_named(tmp_path: Path, text: str, said: str) -> None:
    message = refusal(toml(tmp_path, text))
    assert said in message


def test_a_rule_over_two_settings_names_where_the_wrong_one_was_set(tmp_path: Path) -> None:
    file = toml(tmp_path, "max_parked_polls = 30000")
    assert refusal(file).startswith(f"{file}: max_parked_polls is 30000")
    assert refusal(environment={"TABLECAST_DURABILITY": "x"}).startswith("the variable TABLECAST_DURABILITY: dur")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, directory, binary = tmp_path / "none.toml", tmp_path, tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert refusal(missing) == f"the settings file {missing} cannot be read: No such file or directory"
    assert refusal(directory) == f"the settings file {directory} cannot be read: Is a directory"
    assert refusal(binary).startswith(f"the settings file {binary} is not TOML: ")


def test_proxies_are_addresses_and_networks() -> None:
    assert Settings(trusted_proxies="10.0.0.7, 10.1.0.0/16,::1,").proxies == ["10.0.0.7", "10.1.0.0/16", "::1"]
    assert Settings().proxies == []


def test_origins_are_compared_in_lower_case() -> None:
    assert Settings(allowed_origins="https://App.example, http://localhost:3000,").origins == [
        "https://app.example",
        "http://localhost:3000",
    ]
    assert Settings(allowed_origins="*").origins == ["*"]
    assert Settings().origins == []


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(data=texts, port=st.integers(0, 65_535), seconds=st.floats(1, 86_400), public=st.booleans())
def test_what_is_printed_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, data: str, port: int, seconds: float, public: bool
) -> None:
    settings = Settings(data=data, port=port, lockout_seconds=seconds, metrics_public=public)
    printed = Configuration(settings, {}).as_toml()
    read = tomllib.loads(printed)
    assert {section: tuple(keys) for section, keys in read.items()} == {
        section: tuple(SETTINGS[name].key for name in names) for section, names in SECTIONS.items()
    }
    file = tmp_path_factory.mktemp("settings") / "printed.toml"
    file.write_text(printed, encoding="utf-8")
    found = load(file, {}, {})
    assert (found.settings, found.warnings) == (settings, ())


def test_what_is_printed_says_meaning_and_origin(tmp_path: Path) -> None:
    file = toml(tmp_path, "[server]\nport = 9")
    lines = load(file, {"TABLECAST_HOST": "::1"}, {"data": "shop"}).as_toml().splitlines()
    assert lines[:6] == [
        "[server]",
        "# the address to listen on  (the variable TABLECAST_HOST)",
        'host = "::1"',
        "",
        f"# the port to listen on; 0 takes any that is free  ({file})",
        "port = 9",
    ]
    assert lines[lines.index("[storage]") + 1 :][:2] == [
        "# the directory of the database  (the flag --data)",
        'data = "shop"',
    ]
    assert "# how long a lock-out lasts  (default)" in lines


def test_the_page_lists_every_setting_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    listed = re.findall(r"^\| `(\w+\.\w+)` \| `([^`]*)` \| (.*) \|$", page, re.MULTILINE)
    assert [(name, meaning) for name, _, meaning in listed] == [
        (each.dotted, each.meaning) for each in SETTINGS.values()
    ]
    defaults = {SPELLINGS[name]: json.loads(shown.replace(",", "")) for name, shown, _ in listed}
    assert load(None, {}, defaults).settings == Settings()


# --- sections ---------------------------------------------------------------------------------------------------


def test_what_is_told_of_settings_has_no_password() -> None:
    shown = dict(told(Settings(mqtt="mqtt://ann:secret@broker.local:1883", max_consume_timeout=20)))
    assert shown["mqtt.url"] == "mqtt://…@broker.local:1883"
    assert shown["topics.max_consume_timeout"] == "20"
    assert list(shown) == [each.dotted for each in SETTINGS.values()]


def test_every_setting_is_in_one_section() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(Settings.__struct_fields__)
    assert len({each.dotted for each in SETTINGS.values()}) == len(named)


OTHER_VALUES = {"durability": "none", "log_format": "json", "log_level": "error", "mqtt_overflow": "block"}
FOR_ITSELF = {"tls_certificate", "tls_key", "node_id", "mqtt", "trusted_proxies", "allowed_origins"}  # texts with rules


def other_value(name: str) -> Any:
    default = getattr(Settings(), name)
    if isinstance(default, str):
        return OTHER_VALUES.get(name, default + "x")
    return not default if isinstance(default, bool) else SETTINGS[name].kind.ge  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in FOR_ITSELF])
def test_a_setting_has_the_same_effect_however_it_is_spelt(tmp_path: Path, name: str) -> None:
    setting, value = SETTINGS[name], other_value(name)
    shown = json.dumps(value)
    text = value if isinstance(value, str) else shown
    in_section = toml(tmp_path, f"[{setting.section}]\n{setting.key} = {shown}")
    expect = load(in_section, {}, {})
    assert getattr(expect.settings, name) == value
    assert expect.warnings == ()
    variables = {PREFIX + name.upper(), PREFIX + f"{setting.section}_{setting.key}".upper()}
    for variable in variables:
        found = load(None, {variable: text}, {})
        assert (found.settings, found.warnings) == (expect.settings, ())
    for spelling in (name, setting.dotted):
        assert load(None, {}, {}, {spelling: text}).settings == expect.settings
    flat = load(toml(tmp_path, f"{name} = {shown}"), {}, {})
    assert flat.settings == expect.settings
    [warning] = flat.warnings
    assert f"{name} is {setting.dotted}" in warning


def test_the_old_name_of_a_setting_is_taken_with_a_warning(tmp_path: Path) -> None:
    for found in (
        load(toml(tmp_path, "long_poll_max_seconds = 20"), {}, {}),
        load(None, {"TABLECAST_LONG_POLL_MAX_SECONDS": "20"}, {}),
        load(None, {}, {}, {"long_poll_max_seconds": "20"}),
    ):
        assert found.settings == Settings(max_consume_timeout=20)
        [warning] = found.warnings
        assert "topics.max_consume_timeout" in warning
        assert "the next version refuses" in warning


def test_two_spellings_of_one_setting_agree_or_are_refused_by_name(tmp_path: Path) -> None:
    message = refusal(toml(tmp_path, "long_poll_max_seconds = 20\n[topics]\nmax_consume_timeout = 30"))
    assert "sets long_poll_max_seconds to 20" in message
    assert "sets topics.max_consume_timeout to 30" in message
    message = refusal(environment={"TABLECAST_PORT": "1", "TABLECAST_SERVER_PORT": "2"})
    assert "TABLECAST_PORT" in message
    assert "TABLECAST_SERVER_PORT" in message
    agreeing = load(None, {"TABLECAST_PORT": "1", "TABLECAST_SERVER_PORT": "1"}, {}, {"port": "2", "server.port": "2"})
    assert agreeing.settings == Settings(port=2), "in different places the later one wins, as ever"


def test_an_interval_of_polls_is_taken_and_said_to_have_no_effect(tmp_path: Path) -> None:
    found = load(toml(tmp_path, "[topics]\npoll_interval_ms = 500"), {}, {})
    [warning] = found.warnings
    assert "topics.poll_interval_ms has no effect" in warning
    assert load(toml(tmp_path, "[topics]\npoll_interval_ms = 0"), {}, {}).warnings == ()


@pytest.mark.parametrize("name", [n for n, each in SETTINGS.items() if " from " in expected(each.kind)])
def test_no_default_refuses_a_setting_that_is_within_its_bounds(name: str) -> None:
    """Set alone, at either end, with everything else left as it is."""
    for value in (SETTINGS[name].kind.ge, SETTINGS[name].kind.le):  # type: ignore[attr-defined]
        if name == "max_parked_polls" and value > Settings().max_connections:
            continue  # a rule over two settings, and this is the one that breaks it
        assert getattr(load(None, {}, {name: value}).settings, name) == value
