"""The load clients that `client_accuracy` compares: ours, httpx by hand, and two well-known programs.

Each reads one stream for every key of `keys` at once. A key is the stream's `max_tokens` and its number of
events, so that a program's report tells its streams apart. What comes back are the gaps between the events of
every stream, in seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from loadtests.run import LoadResult, run_load
from loadtests.traffic.schedule import Schedule, ScheduledRequest

SPAWN = multiprocessing.get_context("spawn")
Gaps = Mapping[int, Sequence[float]]
Client = Callable[[str, Sequence[int]], Gaps]


def gaps(stamps_s: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(stamps_s)]


# -- ours ------------------------------------------------------------------------------------------------


def ours(url: str, keys: Sequence[int]) -> Gaps:
    """The load client of a study, Locust and its process included."""
    requests = tuple(
        ScheduledRequest(id=str(key), at_s=0.0, prompt_tokens=16, max_tokens=key, prompt_seed=key)
        for key in keys
    )
    result = play(url, requests, 0.1)
    return {record.max_tokens: gaps([event.at_s for event in record.events]) for record in result.records}


def play(url: str, requests: tuple[ScheduledRequest, ...], duration_s: float) -> LoadResult:
    schedule = Schedule(
        name="accuracy", seed=0, requests=requests, duration_s=duration_s, grace_s=60.0,
        long_prompt_tokens=1 << 20,
    )  # fmt: skip
    return run_load(schedule, url, abort_pause_s=60.0)


# -- what people write by hand: a stamp for every line that carries text -------------------------------------


def httpx_threads(url: str, keys: Sequence[int]) -> Gaps:
    """A thread and a client for each stream."""
    return _in_a_process(_read_on_threads, url, keys)


def httpx_asyncio(url: str, keys: Sequence[int]) -> Gaps:
    """One event loop, one client, a task for each stream."""
    return _in_a_process(_read_on_a_loop, url, keys)


def _in_a_process(read: Callable[..., None], url: str, keys: Sequence[int]) -> Gaps:
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_read_and_send, args=(read, url, keys, there), daemon=True)
    process.start()
    seen: Gaps = here.recv()
    process.join()
    return seen


def _read_and_send(read: Callable[..., None], url: str, keys: Sequence[int], pipe: Connection) -> None:
    stamps: dict[int, list[float]] = {key: [] for key in keys}
    read(f"{url}/v1/chat/completions", stamps)
    pipe.send({key: gaps(one) for key, one in stamps.items()})


def _body(key: int) -> dict[str, Any]:
    message = {"role": "user", "content": "Hello"}
    return {"model": "scripted", "messages": [message], "max_tokens": key, "stream": True}


def _take(line: str, stamps: list[float]) -> None:
    at_s = time.perf_counter()
    if line.startswith("data: {"):
        choices = json.loads(line[6:])["choices"]
        if choices and choices[0]["delta"].get("content"):
            stamps.append(at_s)


def _read_on_threads(url: str, stamps: dict[int, list[float]]) -> None:
    def read(key: int) -> None:
        with httpx.Client(timeout=60) as client, client.stream("POST", url, json=_body(key)) as response:
            for line in response.iter_lines():
                _take(line, stamps[key])

    threads = [threading.Thread(target=read, args=(key,)) for key in stamps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read_on_a_loop(url: str, stamps: dict[int, list[float]]) -> None:
    async def read(client: httpx.AsyncClient, key: int) -> None:
        async with client.stream("POST", url, json=_body(key)) as response:
            async for line in response.aiter_lines():
                _take(line, stamps[key])

    async def read_all() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            await asyncio.gather(*(read(client, key) for key in stamps))

    asyncio.run(read_all())


# -- programs, when they are there ---------------------------------------------------------------------------


def aiperf(url: str, keys: Sequence[int]) -> Gaps:
    """AIPerf, which reports the gaps between the chunks of every request."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "in.jsonl").write_text("".join(json.dumps(_body(key)) + "\n" for key in keys))
        count = str(len(keys))
        _run(
            "aiperf", "profile", "--model", "scripted", "--url", url, "--endpoint-type", "chat",
            "--streaming", "--concurrency", count, "--request-count", count,
            "--input-file", str(directory / "in.jsonl"), "--custom-dataset-type", "raw-payload",
            "--dataset-sampling-strategy", "sequential", "--tokenizer", _tokenizer(directory),
            "--ui", "none", "--output-artifact-dir", str(directory / "out"),
        )  # fmt: skip
        lines = (directory / "out" / "profile_export.jsonl").read_text().splitlines()
    seen = [json.loads(line)["metrics"]["inter_chunk_latency"]["value"] for line in lines]
    return {len(values) + 1: [value / 1000 for value in values] for values in seen}


def guidellm(url: str, keys: Sequence[int]) -> Gaps:
    """guidellm, which keeps the times of a stream's first and last token: its gaps are all their mean."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        prompts = [{"prompt": "Hello", "output_tokens_count": key} for key in keys]
        (directory / "in.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
        count = len(keys)
        _run(
            "guidellm", "run", "--disable-console", "--backend",
            f"kind=openai_http,target={url},model=scripted,request_format=/v1/chat/completions",
            "--profile", f"kind=concurrent,streams={count}",
            "--constraint", f"kind=max_requests,count={count}",
            "--data", f"kind=json_file,path={directory / 'in.jsonl'}",
            "--tokenizer", f"kind=hf_auto,model={_tokenizer(directory)}",
            "--output", f"kind=json,path={directory / 'out.json'}",
        )  # fmt: skip
        report = json.loads((directory / "out.json").read_text())
    done = report["benchmarks"][0]["requests"]["successful"]
    means = {one["output_metrics"]["text_tokens"]: one["inter_token_latency_ms"] for one in done}
    return {key: [mean / 1000] * (key - 1) for key, mean in means.items()}


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}"


def _tokenizer(directory: Path) -> str:
    """Both want one on disk; words will do."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "word": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    target = directory / "tokenizer"
    target.mkdir()
    words.save(str(target / "tokenizer.json"))
    special = {"unk_token": "<unk>", "eos_token": "<eos>", "bos_token": "<eos>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return str(target)


def clients() -> Mapping[str, Client]:
    """Those that can run here."""
    always: dict[str, Client] = {"ours": ours, "httpx threads": httpx_threads, "httpx asyncio": httpx_asyncio}
    programs: dict[str, Client] = {"aiperf": aiperf, "guidellm": guidellm}
    return always | {name: client for name, client in programs.items() if shutil.which(name)}
