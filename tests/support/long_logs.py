"""Logs as long as one likes: the bundled recording again and again, its numbers counting on, its curve one sigmoid."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tui

TINY = Path(tui.__file__).parent / "recordings" / "tiny.jsonl.gz"
PACKING = 1  # of gzip: a benchmark waits for it

# By how much the numbers of one copy go on from those of the copy before.
PER_COPY = {"update": 112, "version": 112, "tokens": 2_000_000, "epoch": 46}

Line = Callable[[int, int], str]  # (copy, seq) -> a line of the log


def write_long(path: Path, events: int) -> int:
    """Write a log of so many events, gzip if it is named so; how many updates it holds."""
    head, *body, last = _recording()
    updates = sum(body[i % len(body)]["kind"] == "update" for i in range(events - 2))
    head["site"]["updates"] = updates
    with _opened(path) as file:
        for line in _lines(head, body, last, events):
            file.write(line)
    return updates


def _opened(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "wt", compresslevel=PACKING, encoding="utf-8")
    return path.open("w", encoding="utf-8")


def _recording() -> list[dict[str, Any]]:
    with gzip.open(TINY, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _lines(head: dict, body: list[dict], last: dict, events: int) -> Iterator[str]:
    copies = (events - 2) / len(body)
    makers = [_maker(event, body[-1], C_mid=copies * body[-1]["gpu_h"] / 5) for event in body]
    yield json.dumps(head) + "\n"
    for i in range(events - 2):
        yield makers[i % len(body)](i // len(body), i + 1)
    end = _moved(last, body[-1], (events - 2) // len(body))
    yield json.dumps(last | end | {"seq": events - 1}) + "\n"


def _moved(event: dict, end: dict, copy: int) -> dict[str, Any]:
    """The numbers of an event that count on from copy to copy."""
    found = {key: event[key] + copy * end[key] for key in ("t", "clock", "gpu_h")}
    for key in ("start", "end"):
        if key in event:
            found[key] = event[key] + copy * end["clock"]
    for key, step in PER_COPY.items():
        if isinstance(event.get(key), int | float):  # a sample has a list of versions
            found[key] = event[key] + copy * step
    if event["kind"] == "eval":
        found["C"] = event["C"] + copy * end["gpu_h"]
    return found


def _maker(event: dict, end: dict, C_mid: float) -> Line:
    """An event as a function of its copy; what stays the same is written once."""
    moving = {*_moved(event, end, 0), "seq"} | ({"pass_rate"} if event["kind"] == "eval" else set())
    same = json.dumps({k: v for k, v in event.items() if k not in moving}, separators=(",", ":"))
    noise = random.Random(event["seq"])

    def line(copy: int, seq: int) -> str:
        new = _moved(event, end, copy) | {"seq": seq}
        if event["kind"] == "eval":
            law = 0.215 + 0.71 / (1.0 + (C_mid / max(new["C"], 1e-9)) ** 2.4)
            new["pass_rate"] = law + noise.gauss(0.0, 0.006)
        return same[:-1] + "".join(f',"{key}":{value!r}' for key, value in new.items()) + "}\n"

    return line
