"""Our server and mlx-lm's in turn, on one model: streams, long prompts, and what they do to each other.

    python -m tests.benchmarks.stall_vs_peer --chunks 2048 256 64 --long 1 4

Prints for each server and step size: time to first token of the long prompts (first and last of them), the
worst streaming pause, tokens streamed meanwhile, and how long a short request waits beside a live stream;
then our figures as ratios to the peer's. `--peer-url` measures any other OpenAI-compatible server that is
running already.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.client import Streamer, text_of

IGNORE_EOS = {"ignore_eos": True, "stream_options": {"include_timings": True}}


@dataclass(frozen=True, slots=True)
class Figures:
    """One scene, medians over repeats; seconds."""

    first_ttft: float
    last_ttft: float
    worst_pause: float
    tokens_meanwhile: float
    short_ttft: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], url: str, ready_path: str) -> Iterator[str]:
    """A server for the length of the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(url + ready_path).status_code == 200:
                    break
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def our_server(model: str) -> contextlib.AbstractContextManager[str]:
    port = free_port()
    command = [sys.executable, "-m", "engine.cli", "serve", "--model", model, "--port", str(port)]
    return running(command, f"http://127.0.0.1:{port}", "/ready")


def peer_server(model: str, step: int) -> contextlib.AbstractContextManager[str]:
    """mlx-lm's own server; on Linux with the same BLAS as ours."""
    port = free_port()
    start = (
        "import engine.mlx_backend, sys; from mlx_lm import server; "
        f"sys.argv = ['server', '--model', {model!r}, '--port', '{port}', '--prefill-step-size', '{step}']; "
        "server.main()"
    )
    return running([sys.executable, "-c", start], f"http://127.0.0.1:{port}", "/v1/models")


def put_config(url: str, **knobs: Any) -> None:
    etag = httpx.get(f"{url}/admin/config").headers["etag"]
    httpx.patch(f"{url}/admin/config", json=knobs, headers={"If-Match": etag}).raise_for_status()


def play(url: str, num_long: int, words: int, streams: int, seed: int, extra: dict[str, Any]) -> Figures:
    """Streams first; then all long prompts at once; then, when those are done, one short request."""
    live = [Streamer(url, text_of(30, seed + i), 4000, extra) for i in range(streams)]
    for stream in live:
        stream.start()
        stream.streaming.wait(300)
    time.sleep(1.0)
    longs = [Streamer(url, text_of(words, seed + 100 + i), 6, extra) for i in range(num_long)]
    for long in longs:
        long.start()
    for long in longs:
        long.join()
    sent_at_s = min(long.answer.sent_at_s for long in longs)
    done_at_s = max(long.answer.stamps_s[0] for long in longs)
    short = Streamer(url, text_of(8, seed + 200), 2, extra)
    time.sleep(0.7)
    short.start()
    short.join()
    for stream in live:
        stream.leave()
        stream.join()
    gaps = [gap for stream in live for gap in stream.answer.gaps_s(sent_at_s, done_at_s)]
    ttfts = [long.answer.ttft_s for long in longs]
    meanwhile = sum(sent_at_s <= at <= done_at_s for stream in live for at in stream.answer.stamps_s)
    return Figures(min(ttfts), max(ttfts), max(gaps), meanwhile, short.answer.ttft_s)


def medians(runs: list[Figures]) -> Figures:
    names = Figures.__slots__
    return Figures(*(statistics.median(getattr(run, name) for run in runs) for name in names))


def measure(url: str, args: argparse.Namespace, num_long: int, extra: dict[str, Any]) -> Figures:
    play(url, 1, args.words // 4, args.streams, 10_000, extra)  # first use is nobody's fault
    runs = [play(url, num_long, args.words, args.streams, 1000 * (i + 1), extra) for i in range(args.repeat)]
    return medians(runs)


def show(name: str, figures: Figures, peer: Figures | None = None) -> None:
    ratios = ""
    if peer is not None:
        pairs = (
            ("first", figures.first_ttft / peer.first_ttft),
            ("last", figures.last_ttft / peer.last_ttft),
            ("pause", figures.worst_pause / peer.worst_pause),
            ("short", figures.short_ttft / peer.short_ttft),
        )
        ratios = "   ours/peer " + "  ".join(f"{what} {ratio:.2f}" for what, ratio in pairs)
    print(
        f"{name:<28} first {figures.first_ttft:6.2f} s  last {figures.last_ttft:6.2f} s  "
        f"pause {figures.worst_pause:6.3f} s  short {figures.short_ttft:5.2f} s  "
        f"{figures.tokens_meanwhile:4.0f} tokens{ratios}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a model directory (default: our default model)")
    parser.add_argument("--chunks", type=int, nargs="+", default=[2048, 256, 64])
    parser.add_argument("--long", type=int, nargs="+", default=[1, 4], help="long prompts at once")
    parser.add_argument("--words", type=int, default=700, help="of a long prompt")
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--pace", type=float, nargs="*", default=[], help="our paced policy at these targets, s"
    )
    parser.add_argument("--peer-url", help="measure this running server instead of mlx-lm's")
    args = parser.parse_args()
    model = str(args.model or default_model())
    for num_long in args.long:
        print(f"\n{args.streams} streams, {num_long} × {args.words} words", flush=True)
        compare(model, num_long, args)


def compare(model: str, num_long: int, args: argparse.Namespace) -> None:
    for chunk in args.chunks:
        if args.peer_url:
            peer = measure(args.peer_url, args, num_long, {})
        else:
            with peer_server(model, chunk) as url:
                peer = measure(url, args, num_long, {})
        show(f"peer, step {chunk}", peer)
        with our_server(model) as url:
            put_config(url, prefill_chunk_tokens=chunk)
            show(f"ours, chunk {chunk}", measure(url, args, num_long, IGNORE_EOS), peer)
    for target_s in args.pace:
        with our_server(model) as url:
            put_config(url, prefill_policy="paced", pause_target_s=target_s)
            show(f"ours, paced {target_s:g} s", measure(url, args, num_long, IGNORE_EOS))


def default_model() -> Path:
    """Our default model in float32: the peer would multiply 4-bit weights on a CPU, which takes ten times
    as long and would make the comparison worthless.
    """
    from engine.default_model import DEFAULT_MODEL
    from engine.mlx_backend.model import find_model

    quantised = find_model(DEFAULT_MODEL)
    target = Path(tempfile.gettempdir()) / f"{quantised.name}-dequantised"
    if not target.exists():
        _dequantise(quantised, target)
    return target


def _dequantise(source: Path, target: Path) -> None:
    import mlx.core as mx
    from mlx_lm import utils

    model, config = utils.load_model(source)
    model = utils.dequantize_model(model)
    model.set_dtype(mx.float32)
    unfinished = target.with_suffix(".part")
    shutil.copytree(source, unfinished, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    utils.save_model(unfinished, model)
    config = {k: v for k, v in config.items() if not k.startswith("quantization")}
    utils.save_config(config, unfinished / "config.json")
    unfinished.rename(target)


if __name__ == "__main__":
    main()
