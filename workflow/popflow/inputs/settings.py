"""Settings against their schema: every default is there, every mistake is told."""

import difflib
import math
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from popflow.runtime.refusal import Refusal

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"


@cache
def _schema(name: str) -> dict[str, Any]:
    return yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text())


def schema(name: str) -> dict[str, Any]:
    """Give a schema of ``workflow/schemas``, e.g. ``"prepare-cytometry"``."""
    return deepcopy(_schema(name))


def defaults(rules: dict[str, Any], given: Any) -> Any:
    """Fill absent keys of `given` with the defaults of a schema, at every level."""
    if rules.get("type") == "array" and isinstance(given, list):
        return [defaults(rules.get("items", {}), item) for item in given]
    if not isinstance(given, dict):
        return given
    filled = dict(given)
    for key, rule in rules.get("properties", {}).items():
        if key not in filled and "default" in rule:
            filled[key] = deepcopy(rule["default"])
        elif key not in filled and rule.get("type") == "object" and "properties" in rule:
            filled[key] = {}
        if key in filled:
            filled[key] = defaults(rule, filled[key])
    return filled


def mistakes(rules: dict[str, Any], given: Any, where: str) -> list[Refusal]:
    """List what a schema finds wrong.

    Parameters
    ----------
    rules : dict
        A JSON schema.
    given : object
        The settings.
    where : str
        Names the file and the place in it that `given` stands at.
    """
    from jsonschema import Draft202012Validator

    errors = list(Draft202012Validator(rules).iter_errors(given))
    errors.sort(key=lambda error: [str(part) for part in error.path])
    return [_refusal(error, where) for error in errors] + _endless(given, where)


def _endless(given: Any, where: str, place: str = "") -> list[Refusal]:
    """List numbers that are NaN or infinite, which pass every bound of a schema."""
    if isinstance(given, float) and not math.isfinite(given):
        where = f"{where}, key '{place}'" if place else where
        return [Refusal(where, f"found {given}", "a finite number", "change the value")]
    if not isinstance(given, dict | list):
        return []
    items = given.items() if isinstance(given, dict) else enumerate(given)
    found = []
    for key, value in items:
        found += _endless(value, where, f"{place}.{key}" if place else str(key))
    return found


def _refusal(error: Any, where: str) -> Refusal:
    """Word one error of jsonschema in the way of this project."""
    place = ".".join(str(part) for part in error.absolute_path)
    where = f"{where}, key '{place}'" if place else where
    rule, limit, found = error.validator, error.validator_value, error.instance
    if rule == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = sorted(set(found) - set(known))
        near = [difflib.get_close_matches(key, known, 1) for key in unknown]
        hints = [
            f"'{key}' -> '{match[0]}'" for key, match in zip(unknown, near, strict=True) if match
        ]
        return Refusal(
            where,
            f"unknown key {', '.join(repr(key) for key in unknown)}",
            f"the keys {', '.join(known)}",
            f"rename {', '.join(hints)}" if hints else "remove it",
        )
    if rule == "required":
        absent = sorted(set(limit) - set(found))
        return Refusal(where, f"no {', '.join(absent)}", f"all of {', '.join(limit)}", "add it")
    accepted = {
        "enum": lambda: "one of " + ", ".join(str(value) for value in limit),
        "type": lambda: f"a value of type {limit}",
        "pattern": lambda: f"text that matches {limit}",
        "minimum": lambda: f"at least {limit}",
        "maximum": lambda: f"at most {limit}",
        "exclusiveMinimum": lambda: f"more than {limit}",
        "exclusiveMaximum": lambda: f"less than {limit}",
        "uniqueItems": lambda: "every item once",
    }.get(rule, lambda: f"{rule} {limit}")()
    near = (
        difflib.get_close_matches(str(found), [str(v) for v in limit], 1) if rule == "enum" else []
    )
    fix = f"write {near[0]}" if near else "change the value"
    return Refusal(where, f"found {found!r}", accepted, fix)


def resolve(name: str, given: dict[str, Any], where: str) -> dict[str, Any]:
    """Check settings against a schema and fill in its defaults.

    Raises
    ------
    Refusals
        With every mistake.
    """
    from popflow.runtime.refusal import Refusals

    rules = schema(name)
    if found := mistakes(rules, given, where):
        raise Refusals(found)
    return defaults(rules, given)
