"""Write the generated parts of the documentation anew: key tables and the rule graph.

Run it with ``make docs``; a test compares what it gives with what is there.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = ROOT / "workflow" / "schemas"
BEGIN, END = "<!-- generated: {} -->", "<!-- end -->"

PAGES = {
    "config/README.md": ["config", "datasets", "rulegraph"],
    "docs/inputs.md": ["formats"],
    "docs/cytometry.md": [
        "sheet-cytometry",
        "sheet-panel",
        "prepare-cytometry",
        "preset-maestro",
        "simulate-cytometry",
        "evaluate-cytometry",
    ],
    "docs/expression.md": [
        "sheet-expression",
        "prepare-expression",
        "preset-urlost",
        "simulate-expression",
        "evaluate-expression",
    ],
    "docs/intracranial.md": [
        "sheet-intracranial",
        "prepare-intracranial",
        "preset-popt",
        "simulate-intracranial",
        "evaluate-intracranial",
    ],
    "docs/placecells.md": [
        "sheet-placecells",
        "prepare-placecells",
        "preset-infinite_gpfa",
        "simulate-placecells",
        "evaluate-placecells",
        "experiments",
        "experiments-infinite_gpfa",
    ],
}


def rows_of(rules: dict[str, Any], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """List (key, accepted, default, meaning) of a schema, nested keys with dots."""
    rows = []
    required = rules.get("required", [])
    for key, rule in rules.get("properties", {}).items():
        name = f"{prefix}{key}"
        if rule.get("type") == "object" and rule.get("properties"):
            rows += rows_of(rule, f"{name}.")
            continue
        if key in required:
            default = "required"
        elif "default" in rule:
            default = f"`{yaml.safe_dump(rule['default'], default_flow_style=True).strip()}`"
            default = default.replace("\n...", "").replace("`null`", "empty")
        else:
            default = ""
        rows.append((f"`{name}`", accepted(rule), default, rule.get("description", "")))
        if isinstance(rule.get("items"), dict) and rule["items"].get("properties"):
            rows += rows_of(rule["items"], f"{name}[].")
    return rows


def accepted(rule: dict[str, Any]) -> str:
    """Say in short what a key accepts."""
    if "enum" in rule:
        return ", ".join(f"`{value}`" for value in rule["enum"])
    kinds = rule.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    words = {"null": "empty", "array": "list", "string": "text", "object": "block"}
    text = " or ".join(words.get(kind, kind) for kind in kinds)
    limits = (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    )
    for name, sign in limits:
        if name in rule:
            text += f" {sign} {rule[name]:g}"
    return text


def table(name: str) -> str:
    """Give the markdown table of a schema."""
    rules = yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text())
    lines = ["| key | accepts | default | meaning |", "|---|---|---|---|"]
    for row in rows_of(rules):
        cells = (" ".join(str(cell).split()).replace("|", "\\|") for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def formats() -> str:
    """Give the table of the formats that the readers' registry knows."""
    from popflow.inputs.registry import FORMATS

    lines = ["| modality | format | files | versions | read | refused | tested on |"]
    lines.append("|---|---|---|---|---|---|---|")
    for form in FORMATS:
        files = ", ".join(f"`{suffix}`" for suffix in form.suffixes) or "told by its first bytes"
        cells = [form.modality, form.name, files, form.versions, form.reads]
        lines.append("| " + " | ".join([*cells, form.refuses, form.tested]) + " |")
    return "\n".join(lines)


def rulegraph() -> str:
    """Give the rule graph of the default configuration as a mermaid diagram."""
    command = [sys.executable, "-m", "snakemake", "--rulegraph", "mermaid-js", "--forceall"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if not line.lstrip().startswith("style ")]
    names = {}
    for line in lines:
        if "[" in line and "-->" not in line:
            key, _, label = line.strip().partition("[")
            names[key.strip()] = label.rstrip("]").strip('"')
    edges = sorted(
        f"    {names[a.strip()]} --> {names[b.strip()]}"
        for a, arrow, b in (line.partition("-->") for line in lines)
        if arrow and names.get(b.strip()) != "all"
    )
    return "\n".join(["```mermaid", "flowchart TB", *dict.fromkeys(edges), "```"])


OTHER_PARTS = {"rulegraph": rulegraph, "formats": formats}


def render(page: str, text: str) -> str:
    """Put the generated parts of a page in place."""
    for name in PAGES[page]:
        begin = BEGIN.format(name)
        if begin not in text:
            raise SystemExit(f"{page} has no line {begin}")
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        part = OTHER_PARTS[name]() if name in OTHER_PARTS else table(name)
        text = f"{before}{begin}\n\n{part}\n\n{END}{after}"
    return text


def main() -> None:
    """Write every page."""
    for page in PAGES:
        path = ROOT / page
        path.write_text(render(page, path.read_text()))


if __name__ == "__main__":
    main()
