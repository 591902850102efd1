"""Traffic profiles: what arrives, how long it is, and when, as data.

A profile is a YAML file; `loadtests/profiles/` holds the named ones. Its times are counted in `time_unit`:
seconds, or `long_prefill`, the time the target needs for one long prompt unchunked, so that one profile
fits a laptop's CPU and a data-centre GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from loadtests.errors import ProfileError
from loadtests.traffic.profile import Profile
from loadtests.traffic.profile_fields import parse_profile

PROFILE_DIR = Path(__file__).parents[1] / "profiles"


def profile_names() -> list[str]:
    """The named profiles that come along."""
    return sorted(path.stem for path in PROFILE_DIR.glob("*.yaml"))


def load_profile(name_or_path: str) -> Profile:
    """A named profile, or the one in a file.

    Raises:
        ProfileError: no such profile or file, not YAML, or a field at fault; names file and field.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = PROFILE_DIR / f"{name_or_path}.yaml"
        if name_or_path not in profile_names():
            known = ", ".join(profile_names())
            raise ProfileError(f"no profile {name_or_path!r}; there are {known}, or give a .yaml file")
    return parse_profile(_read_yaml(path), str(path.name if path.parent == PROFILE_DIR else path))


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read profile {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise ProfileError(f"profile {path}{line} is not YAML: {getattr(error, 'problem', error)}") from error
