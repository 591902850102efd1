"""What the README says of the tree and the knobs is what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from engine.core.config import SchedulerConfig, config_schema

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_knob_table_is_the_schema() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", README, re.MULTILINE)
    told = {name: (default.strip("`"), meaning) for name, default, meaning in rows}
    properties = config_schema()["properties"]
    shown = {
        name: (str(p["default"]) if p["default"] is not None else "null", p["description"])
        for name, p in properties.items()
    }
    assert told == shown
    assert set(shown) == set(SchedulerConfig().to_mapping())


def test_every_source_file_has_a_line_in_the_tree() -> None:
    files = {
        str(path.relative_to(ROOT))
        for package in ("engine", "loadtests", "tuner")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".yaml", ".html", ".js", ".css") and path.name != "__init__.py"
    }
    assert set(files_in_tree()) == files


def files_in_tree() -> list[str]:
    """Paths of the tree block: two spaces of indent a level, `name/` for folders, two spaces before words."""
    block = README.split("<!-- tree -->")[1].split("```")[1]
    folders: list[str] = []
    files = []
    for line in block.strip("\n").splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders[depth:] = [name.rstrip("/")] if name.endswith("/") else []
        if not name.endswith("/"):
            files.append("/".join([*folders[:depth], name]))
    return [file for file in files if file.split("/")[0] in ("engine", "loadtests", "tuner")]


def test_json_examples_parse() -> None:
    for block in re.findall(r"```json\n(.*?)```", README, re.DOTALL):
        json.loads(block)
