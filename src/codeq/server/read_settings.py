"""Reads the settings from a YAML file, the environment and flags, and describes them for the reference."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Struct

from codeq.domain.backoff import BackoffKind
from codeq.domain.errors import InvalidRequest
from codeq.server.auth.callers import read_networks
from codeq.server.setting_names import is_of_kubernetes, misspelt_variable, unknown_setting, unread_variables
from codeq.server.settings import Settings

_OTHER_VARIABLES = frozenset({"CODEQ_CONFIG", "CODEQ_URL", "CODEQ_TOKEN", "CODEQ_PROFILE", "CODEQ_LOCKSTEP"})


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Settings:
    """Reads the settings. Raises InvalidRequest that lists everything that is wrong, not only the first."""
    faults: list[str] = []
    raw = _from_file(file, faults)
    known = {variable(path): path for path, _ in leaves(Settings)}
    for name, text in environ.items():
        if not name.startswith("CODEQ_") or is_of_kubernetes(name, text) or name in _OTHER_VARIABLES:
            continue
        if name in known:
            _put(raw, known[name], text)
        elif complaint := misspelt_variable(name, known):
            faults.append(f"{name}: {complaint}")
    for path, value in (flags or {}).items():
        if value is not None:
            _put(raw, path, value)
    settings = _build(Settings, raw, "", faults)
    if settings is not None:
        faults += _contents(settings)
    if faults or settings is None:
        raise InvalidRequest("the settings are not usable:\n  " + "\n  ".join(faults))
    return settings  # type: ignore[no-any-return]


def warnings(environ: Mapping[str, str]) -> list[str]:
    """Returns a warning for each variable that looks as if it were for codeQ, and that nobody reads."""
    known = {variable(path) for path, _ in leaves(Settings)} | _OTHER_VARIABLES
    unknown = [
        f"{name} is not read; there is no such setting"
        for name, text in environ.items()
        if name.startswith("CODEQ_") and name not in known and not is_of_kubernetes(name, text)
    ]
    return unknown + unread_variables(environ)


class _SettingsLoader(yaml.SafeLoader):
    """Refuses a name that occurs twice: YAML's would drop the first one, with all settings below it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # not of `!!map []`
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def _contents(settings: Settings) -> Iterator[str]:
    """Yields what is wrong with the texts of settings that have a form of their own."""
    if settings.retry.backoff_policy not in list(BackoffKind):
        yield f"retry.backoff_policy: {settings.retry.backoff_policy!r} is none of {', '.join(BackoffKind)}"
    if settings.store.durability == "replicated" and not settings.store.url:
        yield "store.durability: `replicated` is for Redis, and store.url is not set; RocksDB knows fsync and process"
    try:
        read_networks(settings.http.trusted_proxies)
    except ValueError as fault:
        yield f"http.trusted_proxies: {fault}"
    yield from settings.rate_limit.faults()
    yield from settings.webhooks.faults()


def leaves(kind: type[Struct], prefix: str = "") -> Iterator[tuple[str, msgspec.inspect.Field]]:
    """Yields every setting that is not a group of settings, by its dotted name."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101 - for the type checker
    hints = get_type_hints(kind)
    for field in info.fields:
        inner = hints[field.name]
        if isinstance(inner, type) and issubclass(inner, Struct):
            yield from leaves(inner, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field


def variable(path: str) -> str:
    return "CODEQ_" + path.replace(".", "_").upper()


def _from_file(file: Path | None, faults: list[str]) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        raw = _SettingsLoader(file.read_text()).get_single_data()
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as fault:
        faults.append(f"{file}: {fault}")
        return {}
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        faults.append(f"{file}: settings are a mapping, not a {type(raw).__name__}")
        return {}
    return raw


def _put(raw: dict[str, Any], path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        inner = raw.get(group)
        raw[group] = inner if isinstance(inner, dict) else {}
        raw = raw[group]
    raw[name] = value


def _build(kind: type[Struct], raw: Any, prefix: str, faults: list[str]) -> Any:
    """Builds the value field by field, so that every fault is found."""
    if not isinstance(raw, dict):
        faults.append(f"{prefix.rstrip('.')}: expected a mapping")
        return None
    hints = get_type_hints(kind, include_extras=True)
    unknown = sorted([str(name) for name in raw if name not in hints])
    faults += [f"{prefix}{name}: {unknown_setting(name, hints)}" for name in unknown]
    values = {}
    for name, hint in hints.items():
        if name not in raw:
            continue
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if isinstance(bare, type) and issubclass(bare, Struct):
            values[name] = _build(bare, raw[name], f"{prefix}{name}.", faults)
            continue
        try:
            value = raw[name]
            if bare == dict[str, Any] and isinstance(value, str):
                value = msgspec.json.decode(value)
            values[name] = msgspec.convert(value, hint, strict=False)
        except (msgspec.ValidationError, msgspec.DecodeError) as fault:
            faults.append(f"{prefix}{name}: {fault}")
    return None if any(value is None for value in values.values()) else kind(**values)


def reference() -> str:
    """Returns the page that lists every setting, as Markdown."""
    lines = [
        "# Settings",
        "",
        "A YAML file (`codeq serve --config FILE`), the environment and flags, the later ones winning. `codeq config",
        "check` reports all that is wrong with them at once. This page is made by `codeq config reference`.",
        "",
        "| setting | environment | default | meaning |",
        "|---|---|---|---|",
    ]
    for path, field in leaves(Settings):
        default = field.default if field.default is not msgspec.NODEFAULT else {}
        meaning = getattr(field.type, "extra_json_schema", None) or {}
        shown = msgspec.json.encode(default).decode() if default != "" else '""'
        lines.append(f"| `{path}` | `{variable(path)}` | `{shown}` | {meaning.get('description', '')} |")
    return "\n".join(lines) + "\n"
