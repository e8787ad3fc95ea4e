"""The configuration of a run: config.yaml, the datasets sheet and the presets, resolved."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from popflow.inputs import sheets
from popflow.inputs.settings import defaults, mistakes, resolve, schema
from popflow.runtime.refusal import Refusal, Refusals

PRESETS = Path(__file__).resolve().parents[3] / "config" / "presets"
MODALITY_OF = {
    "maestro": "cytometry",
    "urlost": "expression",
    "popt": "intracranial",
    "infinite_gpfa": "placecells",
}


@dataclass
class Config:
    """A resolved configuration.

    Attributes
    ----------
    settings : dict
        config.yaml with its defaults.
    datasets : dict of str to dict
        Rows of the datasets sheet, see `sheets.read_datasets`.
    fits : list of dict
        One per dataset, model, variant and seed, with `settings` resolved from the preset.
    stages : dict of str to dict of str to dict
        Per stage (prepare, simulate, evaluate) and dataset, the settings with defaults.
    """

    settings: dict[str, Any]
    datasets: dict[str, dict[str, Any]]
    fits: list[dict[str, Any]] = field(default_factory=list)
    stages: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """The safe loader, strict about keys: YAML would keep the last of two silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, str) and name in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: the key {name!r} stands there twice")
            seen.add(name if isinstance(name, str) else id(key))
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of keys and values with the safe loader.

    Raises
    ------
    Refusal
        When the file is absent, no text in UTF-8, no YAML, has a key twice, or holds no keys.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise Refusal(f"file {path}", "no plain file", "a YAML file", "mend the path")
    try:
        loader = _Loader(path.read_text(encoding="utf-8-sig"))
        found = loader.get_single_data()
    except FileNotFoundError:
        raise Refusal(f"file {path}", "no such file", "a YAML file", "mend the path") from None
    except UnicodeDecodeError as error:
        found, fix = f"byte {error.start} is no UTF-8", "save it as UTF-8"
        raise Refusal(f"file {path}", found, "text in UTF-8", fix) from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise Refusal(f"file {path}", f"not YAML: {reason}", "a YAML file", "mend it") from None
    if found is not None and not isinstance(found, dict):
        kind = {list: "a list"}.get(type(found), repr(found)[:40])
        raise Refusal(f"file {path}", f"it holds {kind}", "keys with values", "write key: value")
    return found or {}


def preset(
    model: str, name: str = "small", variant: str = "default", folder: str | Path | None = None
) -> dict[str, Any]:
    """Resolve a model's settings: defaults of the schema, then the preset, then the variant.

    Parameters
    ----------
    model : str
        A key of `MODALITY_OF`.
    name, variant : str
        Under `presets` and `variants` of ``<folder>/<model>.yaml``.
    folder : path, optional
        Default: config/presets of the project.

    Raises
    ------
    Refusal, Refusals
        On an unknown name or a setting that the schema does not accept.
    """
    path = Path(folder or PRESETS) / f"{model}.yaml"
    book = read_yaml(path)
    for kind, wanted in (("presets", name), ("variants", variant)):
        known = _mapping(book.get(kind), f"file {path}, key '{kind}'")
        if wanted not in known:
            where, names = f"file {path}, key '{kind}'", ", ".join(sorted(known))
            raise Refusal(
                where, f"no {wanted!r}", f"one of {names}", "add it there or mend the name"
            )
    base, over = (
        _mapping(book[kind][wanted], f"file {path}, key '{kind}.{wanted}'")
        for kind, wanted in (("presets", name), ("variants", variant))
    )
    given = _merged(base, over)
    return resolve(f"preset-{model}", given, f"file {path}, preset {name}, variant {variant}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    """Give settings by key; nothing counts as none."""
    if value is not None and not isinstance(value, dict):
        raise Refusal(where, f"found {value!r}", "keys with values", "write key: value below it")
    return value or {}


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay one nested dict over another."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def resolve_config(
    given: dict[str, Any], folder: str | Path, where: str = "config/config.yaml"
) -> Config:
    """Check a configuration and resolve it; nothing but tables and YAML is read.

    Parameters
    ----------
    given : dict
        The content of config.yaml.
    folder : path
        The folder of config.yaml: the datasets sheet is relative to it, and its `presets` folder
        is used when there is one.
    where : str
        The name of the file, for messages.

    Raises
    ------
    Refusals
        With every mistake that was found, not only the first.
    """
    rules, folder = schema("config"), Path(folder)
    found = mistakes(rules, given, where)
    if not isinstance(given, dict):
        raise Refusals(found)
    settings = defaults(rules, given)
    datasets = _collect(found, sheets.read_datasets, folder / str(settings["datasets"])) or {}
    if found:
        raise Refusals(found)
    config = Config(settings, datasets)
    config.fits = _fits(settings.get("fits", []), datasets, folder, where, found)
    for stage in ("simulate", "prepare", "evaluate"):
        config.stages[stage] = _stage(stage, settings[stage], datasets, where, found)
    for row in datasets.values():
        if row["source"] != sheets.SIMULATED:
            _collect(found, sheets.read_units, row)
        if "panel" in row:
            _collect(found, sheets.read_sheet, row["panel"], "sheet-panel", "channel")
    if found:
        raise Refusals(found)
    return config


def _collect(found: list[Refusal], call: Any, *args: Any) -> Any:
    """Call, and gather refusals instead of stopping at the first."""
    try:
        return call(*args)
    except Refusal as refusal:
        found.append(refusal)
    except Refusals as refusals:
        found.extend(refusals.refusals)
    return None


def _unknown(where: str, dataset: str, datasets: dict[str, Any]) -> Refusal:
    known = ", ".join(sorted(datasets))
    fix = "add a row to the datasets sheet or mend the name"
    return Refusal(where, f"unknown dataset {dataset!r}", f"one of {known}", fix)


def _fits(
    entries: list[dict[str, Any]],
    datasets: dict[str, dict[str, Any]],
    folder: Path,
    where: str,
    found: list[Refusal],
) -> list[dict[str, Any]]:
    """Expand the entries under `fits` into single fits."""
    own = folder / "presets"
    fits, seen = [], set()
    for number, entry in enumerate(entries):
        place, model, dataset = f"{where}, key 'fits.{number}'", entry["model"], entry["dataset"]
        if dataset not in datasets:
            found.append(_unknown(place, dataset, datasets))
            continue
        modality = datasets[dataset]["modality"]
        if MODALITY_OF[model] != modality:
            models = [name for name, kind in MODALITY_OF.items() if kind == modality]
            message = f"{model} is for {MODALITY_OF[model]}, and {dataset} is {modality}"
            found.append(Refusal(place, message, " or ".join(models), "change model or dataset"))
            continue
        if (dataset, model) in seen:
            message = f"{dataset} with {model} stands there twice"
            found.append(Refusal(place, message, "one entry each", "merge variants and seeds"))
        seen.add((dataset, model))
        for variant in entry["variants"]:
            folder_of_model = own if (own / f"{model}.yaml").is_file() else None
            settings = _collect(found, preset, model, entry["preset"], variant, folder_of_model)
            fits += [
                {"dataset": dataset, "model": model, "variant": variant, "seed": seed}
                | {"preset": entry["preset"], "settings": settings}
                for seed in entry["seeds"]
            ]
    return fits


def _stage(
    stage: str,
    blocks: dict[str, Any],
    datasets: dict[str, dict[str, Any]],
    where: str,
    found: list[Refusal],
) -> dict[str, dict[str, Any]]:
    """Resolve the settings of a stage for every dataset."""
    for dataset in blocks:
        if dataset not in datasets:
            found.append(_unknown(f"{where}, key '{stage}'", dataset, datasets))
    resolved = {}
    for dataset, row in datasets.items():
        if stage == "simulate" and row["source"] != sheets.SIMULATED:
            if dataset in blocks:
                message = f"{dataset} is not simulated (its source is {row['source']})"
                place = f"{where}, key '{stage}.{dataset}'"
                found.append(Refusal(place, message, "simulated datasets only", "remove the block"))
            continue
        place = f"{where}, key '{stage}.{dataset}'"
        resolved[dataset] = _collect(
            found, resolve, f"{stage}-{row['modality']}", blocks.get(dataset, {}), place
        )
    return resolved


def read_experiments(path: Path) -> dict[str, Any]:
    """Read the scenarios with known factors (config/experiments.yaml), with their defaults.

    Raises
    ------
    Refusal, Refusals
        For an unknown key or a value that is not accepted.
    """
    given = resolve("experiments", read_yaml(path), f"file {path}")
    given["scenarios"] = {
        name: resolve("experiments-infinite_gpfa", held or {}, f"file {path}, scenario {name}")
        for name, held in given["scenarios"].items()
    }
    return given
