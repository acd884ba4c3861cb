"""Where the values of settings come from, and how each setting is spelt.

Later places win: defaults, the TOML file, `TABLECAST_…` variables, flags. Each value is judged where it was found, so an
error names the file, variable or flag, the setting, and what would be right. Nothing unknown is passed over: a
misspelt limit must not leave its default in force unnoticed.

    file       [topics]                      a setting belongs to one section
               max_consume_timeout = 300
    variable   TABLECAST_TOPICS_MAX_CONSUME_TIMEOUT, or without the section
    --set      topics.max_consume_timeout=300, or without the section

A file may still name a setting without its section; that is deprecated, as are the names in RENAMED.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.inspect import BoolType, FloatType, IntType, LiteralType, Metadata, StructType, Type, type_info

from tablecast.errors import InvalidRequest
from tablecast.server.settings import Settings

PREFIX = "TABLECAST_"
OTHER_VARIABLES = ("CONFIG", "FAILPOINT", "PASSWORD", "TOKEN", "URL", "USER")  # mean something elsewhere: not settings
# Which settings each section has, in the order in which they are printed. A key is the setting's name without the section's.
SECTIONS = {
    "server": (
        "host", "port", "tls_certificate", "tls_key", "insecure_network", "trusted_proxies", "max_connections",
        "newcomers_share", "newcomers_wait_seconds", "drain_seconds", "console",
    ),
    "storage": ("data", "durability", "jobs_interval_seconds", "changes_kept_seconds", "changes_max_bytes"),
    "limits": (
        "max_body_bytes", "max_part_bytes", "max_sql_bytes", "max_result_rows", "max_answer_bytes",
        "max_snapshots_per_user",
        "statement_timeout_seconds", "query_memory_mb", "body_timeout_seconds", "requests_per_second_per_user",
        "requests_per_second_per_address",
    ),
    "topics": (
        "default_consume_timeout", "max_consume_timeout", "max_parked_polls", "allow_user_role_consume", "poll_interval_ms",
    ),
    "live": (
        "live_max_subscriptions", "live_buffer_bytes", "live_auth_seconds", "live_ping_seconds",
        "live_system_sample_seconds", "allowed_origins",
    ),
    "auth": (
        "login_attempts", "login_attempts_per_address", "lockout_seconds", "access_token_seconds", "refresh_token_seconds",
    ),
    "mqtt": (
        "mqtt", "node_id", "mqtt_prefix", "mqtt_ca", "mqtt_overflow", "mqtt_outbox_events", "mqtt_compare_seconds",
    ),
    "observability": ("metrics_public", "log_format", "log_level", "otel_endpoint"),
}  # fmt: skip
KEYS = {"mqtt": "url"}  # where leaving out the section leaves nothing
RENAMED = {"long_poll_max_seconds": "max_consume_timeout"}  # taken for one more version
AT_MOST = {"max_parked_polls": "max_connections"}  # a default that would be above what was set is that instead


class Configuration(msgspec.Struct, frozen=True):
    """Settings, for each that is not a default the place it came from, and what to warn of."""

    settings: Settings
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def as_toml(self) -> str:
        """All settings as a file that `load` reads back, each with its meaning and origin."""
        return "\n".join("\n".join(self._lines(section)) for section in SECTIONS)

    def _lines(self, section: str) -> Iterator[str]:
        yield f"[{section}]"
        for name in SECTIONS[section]:
            setting = SETTINGS[name]
            yield f"# {setting.meaning}  ({self.origins.get(name, 'default')})"
            yield f"{setting.key} = {_toml(getattr(self.settings, name))}\n"


class _Given(NamedTuple):
    name: str
    value: Any
    spelling: str
    origin: str


# --- loading ----------------------------------------------------------------------------------------------------


def load(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    assigned: Mapping[str, str] | None = None,
) -> Configuration:
    """`flags` maps settings that have a flag of their own to text or values, `assigned` any others (`--set`) to text."""
    places = (_of_file(file), _of_variables(environment), _of_flags(flags), _of_assigned(assigned or {}))
    found: dict[str, _Given] = {}
    warnings: list[str] = []
    for place in places:
        here = _once_each(place)
        found |= {given.name: given for given in here}
        warnings += _warnings(here, is_file=place is places[0])
    values = {name: given.value for name, given in found.items()}
    origins = {name: given.origin for name, given in found.items()}
    try:
        return Configuration(Settings(**_lowered_defaults(values), **values), origins, tuple(warnings))
    except InvalidRequest as error:  # of settings that do not go together: name the place of the one at fault
        place_of = origins.get(error.details["setting"])
        raise InvalidRequest(f"{place_of}: {error}" if place_of else error.message, **error.details) from None


def _lowered_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: min(getattr(Settings(), name), values[bound])
        for name, bound in AT_MOST.items()
        if bound in values and name not in values
    }


def _once_each(place: Iterator[_Given]) -> list[_Given]:
    """What one place sets. It may spell a setting in two ways if they agree."""
    found: dict[str, _Given] = {}
    for given in place:
        other = found.setdefault(given.name, given)
        if other.value != given.value:
            raise InvalidRequest(
                f"{other.origin} sets {other.spelling} to {other.value!r}, and {given.origin} sets {given.spelling} to "
                f"{given.value!r}: they are one setting; keep {SETTINGS[given.name].dotted}",
                setting=given.name,
            )
    return list(found.values())


def _warnings(place: list[_Given], *, is_file: bool) -> Iterator[str]:
    flat = [given for given in place if is_file and "." not in given.spelling]
    if flat:
        named = ", ".join(f"{given.spelling} is {SETTINGS[given.name].dotted}" for given in flat)
        yield (
            f"{flat[0].origin} names settings without their section, which the next version refuses: {named}. "
            "`tablecast serve --print-config` writes the file anew"
        )
    for given in place:
        dotted = SETTINGS[given.name].dotted
        if given.spelling in RENAMED and not is_file:
            yield f"{given.origin}: {given.spelling} is now {dotted}; the next version refuses the old name"
        if given.name == "poll_interval_ms" and given.value:
            yield f"{given.origin}: {dotted} has no effect, because nothing polls: a commit wakes those who wait for it"


# --- places -----------------------------------------------------------------------------------------------------


def _of_file(file: Path | None) -> Iterator[_Given]:
    if file is None:
        return
    for key, value in _read_toml(file).items():
        if not isinstance(value, dict):
            yield _judged(key, value, str(file), strict=True)
            continue
        if key not in SECTIONS:
            raise InvalidRequest(
                f"{file} has a section [{key}], and there is no such section{_meant_section(key)}", setting=key
            )
        for inner, inner_value in value.items():
            yield _judged(f"{key}.{inner}", inner_value, str(file), strict=True)


def _of_variables(environment: Mapping[str, str]) -> Iterator[_Given]:
    for variable in sorted(environment):
        key = variable.removeprefix(PREFIX)
        if key != variable and key not in OTHER_VARIABLES:
            spelling = _VARIABLES.get(key.lower(), key.lower())
            yield _judged(spelling, environment[variable], f"the variable {variable}", strict=False)


def _of_flags(flags: Mapping[str, Any]) -> Iterator[_Given]:
    for key, value in flags.items():
        yield _judged(key, value, f"the flag --{key.replace('_', '-')}", strict=False)


def _of_assigned(assigned: Mapping[str, str]) -> Iterator[_Given]:
    for key, value in assigned.items():
        yield _judged(key, value, "the flag --set", strict=False)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"the settings file {file} cannot be read: {error.strerror}", file=str(file)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the settings file {file} is not TOML: {error}", file=str(file)) from error


def _judged(spelling: str, value: Any, origin: str, *, strict: bool) -> _Given:
    name = SPELLINGS.get(spelling)
    if name is None:
        raise InvalidRequest(
            f"{origin} sets {spelling!r}, and there is no such setting{_meant(spelling)}", setting=spelling
        )
    setting = SETTINGS[name]
    try:
        return _Given(name, msgspec.convert(value, setting.annotation, strict=strict), spelling, origin)
    except msgspec.ValidationError:
        raise InvalidRequest(
            f"{origin} sets {spelling} to {value!r}; it takes {expected(setting.kind)}", setting=name, value=repr(value)
        ) from None


def _meant(spelling: str) -> str:
    """What to suggest: the same key in its own section, else what is spelt most alike."""
    section, _, key = spelling.rpartition(".")
    known = [setting.dotted for setting in SETTINGS.values()] if section else list(SETTINGS)
    elsewhere = [setting.dotted for setting in SETTINGS.values() if section and key in (setting.key, setting.name)]
    near = elsewhere or difflib.get_close_matches(spelling, known, n=1)
    return f": did you mean {near[0]}?" if near else "; `tablecast serve --print-config` lists them"


def _meant_section(section: str) -> str:
    near = difflib.get_close_matches(section, SECTIONS, n=1)
    return f": did you mean [{near[0]}]?" if near else f": there are {', '.join(f'[{name}]' for name in SECTIONS)}"


# --- what a setting is ------------------------------------------------------------------------------------------


class Setting(msgspec.Struct, frozen=True):
    name: str
    section: str
    annotation: Any
    kind: Type
    meaning: str

    @property
    def key(self) -> str:
        """In its section."""
        return KEYS.get(self.name, self.name.removeprefix(f"{self.section}_"))

    @property
    def dotted(self) -> str:
        return f"{self.section}.{self.key}"


def _declared() -> dict[str, Setting]:
    info = type_info(Settings)
    assert isinstance(info, StructType)
    sections = {name: section for section, names in SECTIONS.items() for name in names}
    annotations = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    kinds = {field.name: field.type for field in info.fields}
    return {name: _setting(name, section, annotations[name], kinds[name]) for name, section in sections.items()}


def _setting(name: str, section: str, annotation: Any, described: Type) -> Setting:
    assert isinstance(described, Metadata), "every setting says what it means"
    meaning = str((described.extra_json_schema or {})["description"])
    return Setting(name, section, annotation, described.type, meaning)


SETTINGS = _declared()
SPELLINGS = {spelling: name for name, each in SETTINGS.items() for spelling in (name, each.dotted)} | RENAMED
_VARIABLES = {
    text: each.dotted for each in SETTINGS.values() if (text := each.dotted.replace(".", "_")) not in SPELLINGS
}


def told(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Every setting as `system.settings` shows it: what is in an address before its @ may be a password."""
    texts = ((each.dotted, getattr(settings, name)) for name, each in SETTINGS.items())
    return tuple(
        (dotted, re.sub("//.*@", "//…@", value) if isinstance(value, str) else _toml(value)) for dotted, value in texts
    )


def expected(kind: Type) -> str:
    """What a value must be, in words."""
    if isinstance(kind, BoolType):
        return "true or false"
    if isinstance(kind, LiteralType):
        return " or ".join(str(value) for value in kind.values)
    if isinstance(kind, IntType | FloatType):
        return f"{'a whole number' if isinstance(kind, IntType) else 'a number'} from {kind.ge:,} to {kind.le:,}"
    return "a text"


def _toml(value: bool | int | float | str) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
