"""Bundled recordings of runs, to be replayed: event logs as `scalerl run` writes them, packed with gzip.

`tiny.jsonl.gz`: `scalerl run tiny`. `truncated.jsonl.gz`: the same with `length.kind=none site.thinking_tokens=24`.
`make recordings` makes them anew.
"""

from pathlib import Path

RECORDINGS = Path(__file__).parent
DEMO = RECORDINGS / "tiny.jsonl.gz"
