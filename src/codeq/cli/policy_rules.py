"""The rules of a queue's policy on the command line: parses NAME=VALUE, and shows every rule and whether it is set."""

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from codeq.cli.errors import UsageError
from codeq.cli.output import Output, format_duration, table
from codeq.cli.parameters import duration

if TYPE_CHECKING:
    from codeq import EffectivePolicy, QueuePolicy


def with_rules(policy: "QueuePolicy", settings: Sequence[str], unset: Sequence[str]) -> "QueuePolicy":
    """Returns the policy with the rules of `settings` (NAME=VALUE) set and those of `unset` (NAME) not set."""
    for setting in settings:
        name, _, value = setting.partition("=")
        rule = _rule(name, setting if value else "")
        try:
            policy = _replace(policy, rule, rule.parse(value))
        except ValueError:
            raise UsageError(f"{value!r} is not a valid {name.strip()}") from None
    for name in unset:
        policy = _replace(policy, _rule(name, name), None)
    return policy


def policy_fields(policy: "QueuePolicy | None", effective: "EffectivePolicy") -> dict[str, Any]:
    """The fields of `--json`, named as on the wire."""
    import msgspec

    from codeq.sdk.queue_policies import stored_effective, stored_policy
    from codeq.wire import queues

    return {
        "policy": None if policy is None else msgspec.to_builtins(queues.policy_fields(stored_policy(policy))),
        "effectivePolicy": msgspec.to_builtins(queues.policy_fields(stored_effective(effective))),
        "version": policy.version if policy else 0,
    }


def show_policy(out: Output, command: str, policy: "QueuePolicy | None", effective: "EffectivePolicy") -> None:
    if policy is None:
        out.say(f"{command} has no policy of its own; the server's settings apply")
    else:
        out.say(
            f"{command} has a policy, version {policy.version}; rules that are not set follow the server's settings"
        )
    rows = [
        (name, rule.show(attrgetter(rule.field)(effective)), "set" if _is_set(policy, rule) else "")
        for name, rule in _RULES.items()
    ]
    out.show(table(("rule", "value", ""), rows))


class _Rule(NamedTuple):
    field: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]


def _rule(name: str, given: str) -> _Rule:
    rule = _RULES.get(name.strip().lower().removesuffix("-seconds")) if given else None
    if rule is None:
        raise UsageError(f"a rule is one of {', '.join(_RULES)}, set as NAME=VALUE; not {given or name!r}")
    return rule


def _replace(policy: "QueuePolicy", rule: _Rule, value: Any) -> "QueuePolicy":
    from codeq.sdk.backoffs import partial_backoff

    group, _, part = rule.field.partition(".")
    if part:
        of = policy.backoff or partial_backoff()
        parts: dict[str, Any] = {"kind": of.kind, "base": of.base, "most": of.most, part: value}
        value = None if all(each is None for each in parts.values()) else partial_backoff(**parts)
    return dataclasses.replace(policy, **{group: value})


def _is_set(policy: "QueuePolicy | None", rule: _Rule) -> bool:
    value: Any = policy
    for name in rule.field.split("."):
        value = getattr(value, name, None)
    return value is not None


def _backoff_kind(text: str) -> Any:
    from codeq.domain.backoff import BackoffKind

    return BackoffKind(text)


def _on_expiry(text: str) -> Any:
    from codeq.domain.queue import OnExpiry

    return OnExpiry(text)


def _yes(text: str) -> bool:
    return ("no", "yes").index(text) == 1


_RULES: dict[str, _Rule] = {
    "max-attempts": _Rule("max_attempts", int, str),
    "max-deliveries": _Rule("max_deliveries", int, str),
    "max-consumers": _Rule("max_consumers", int, lambda count: str(count or "no limit")),
    "lease": _Rule("lease", duration, format_duration),
    "retention": _Rule("retention", duration, format_duration),
    "dead-retention": _Rule("dead_retention", duration, format_duration),
    "on-expiry": _Rule("on_expiry", _on_expiry, str),
    "backoff": _Rule("backoff.kind", _backoff_kind, str),
    "backoff-base": _Rule("backoff.base", duration, format_duration),
    "backoff-max": _Rule("backoff.most", duration, format_duration),
    "paused": _Rule("paused", _yes, lambda paused: "yes" if paused else "no"),
}
