"""What stands on the home screen: entries, their previews, and the line of a run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tui.show.rows import Row, cut, wrapped
from tui.words import duration, printable

if TYPE_CHECKING:  # imports the schema: not before the first paint
    from tui.watch.catalog import RunSummary


@dataclass(frozen=True)
class Entry:
    """One line of the list. action: what enter does; about: the words of its preview."""

    id: str
    label: str
    action: str
    about: tuple[str, ...]
    value: str = ""
    run: "RunSummary | None" = None


# The first entry starts the tiny run: enter, enter, enter is a tour.
START = Entry(
    "tiny",
    "▸ Start the tiny run",
    "scenario",
    (
        "Trains a 28,000-parameter policy with the whole ScaleRL recipe on a virtual 80-GPU cluster,"
        " about a minute on two cores, and shows its scaling curve as it grows.",
        "You will see: pass rate rising along a sigmoid, the fit's ceiling A become known, thinking grow"
        " longer, off-policy lag held under k = 8.",
        "Then press e, change one line of the recipe, run again, and compare.",
        "Needs nothing: no GPU, no network.",
    ),
    value="tiny",
)
DEMO = Entry(
    "demo",
    "⏵ Replay a recorded run",
    "recording",
    (
        "A bundled recording of the tiny run, with a scrub bar: the fit uses only what lies left of the"
        " cursor, so you see how early the end could be told.",
        "space plays and pauses, ←→ step, , and . jump between alarms.",
    ),
    value="tiny.jsonl.gz",
)
TRUNCATED = Entry(
    "truncated",
    "⏵ Replay a run that truncation held down",
    "recording",
    (
        "The same recipe without interruptions and with 24 thinking tokens: as thinking grows, more and more"
        " completions end without an answer, and the ceiling falls from 0.93 to 0.65.",
        "Watch panel 2 enter its danger zone long before the curve bends.",
    ),
    value="truncated.jsonl.gz",
)
LESSONS = Entry(
    "lessons",
    "  Lessons: predict, run, compare, explain",
    "none",
    ("Lessons are not here yet. Until then: start the tiny run, and press ? on anything you see.",),
)
ATTACH = Entry(
    "attach",
    "a Attach to a run ...",
    "attach",
    (
        "Follow a run that trains elsewhere: a run folder, a log, ssh://host/path/events.jsonl or http://...",
        "Read-only: nothing is ever written next to the run.",
    ),
)
OPEN = Entry(
    "open",
    "o Open a recording ...",
    "open",
    ("Replay an events.jsonl or .jsonl.gz with the scrub bar.",),
)
COMPARE = Entry(
    "compare",
    "c Compare curves ...",
    "compare",
    (
        "Runs, or the paper's curves, side by side: ceilings with intervals, who gets there faster, what"
        " differs in the recipes.",
    ),
)


NO_RUN = Entry(
    "none",
    "no runs yet: press enter on the first entry to start the tiny run",
    "none",
    ("No runs yet.",),
)


def run_entry(run: "RunSummary", marked: bool) -> Entry:
    about = {
        "live": "enter watches it.",
        "done": "enter shows it; r there runs it anew.",
        "crashed": "enter shows why; r there takes it up from its last checkpoint.",
    }.get(run.status, "enter shows it; r there takes it up.")
    glyph = "+" if marked else run.glyph
    differs = "" if run.recipe in ("", "ScaleRL") else f"   {run.recipe}"
    label = f"{glyph} {printable(run.name):<24} {run.says}{differs}"
    return Entry(f"run-{run.folder}", label, "run", (about,), str(run.folder), run)


def run_rows(run: "RunSummary", width: int) -> list[Row]:
    rows: list[Row] = [
        [("state     ", "muted"), (f"{run.glyph} {run.says}", "")],
        [("last line ", "muted"), (f"{duration(run.age_s)} ago", "")],
    ]
    if run.pass_rate is not None:
        rows.append([("pass rate ", "muted"), (f"{run.pass_rate:.3f}", "strong")])
    if run.A is not None:
        rows.append([("ceiling A ", "muted"), (f"{run.A:.3f}", "strong")])
    rows += [
        [("folder    ", "muted"), *first]
        for first in wrapped(printable(str(run.folder)), max(width - 10, 10))[:1]
    ]
    return [*[cut(row, width) for row in rows], []]
