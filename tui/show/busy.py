"""What GPUs did of late, as rows: a lane each, or a bar for each role."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.events import is_number
from tui.show.rows import Row, cut, joined, merged, within
from tui.watch.scene import Scene
from tui.watch.store import Floats

STILL_OF = 8  # updates that the panel of the busy GPUs looks back on
FEW_LANES = 32

# what a GPU does: (glyph, role); generating and training differ without colour too
WORK = {
    "generate": ("█", "data"),
    "update": ("▚", "fit"),
    "train": ("▚", "fit"),
    "push": ("▒", "pinned"),
    "evaluate": ("▞", "paper"),
    "idle": ("·", "muted"),
}
OTHER_WORK = ("▤", "strong")


@dataclass(frozen=True)
class Lane:
    """Some GPUs that are shown as one: "gen x64", 64 GPUs, and (what, start, end, GPUs) of each phase."""

    name: str
    role: str
    gpus: float
    spans: tuple[tuple[str, float, float, float], ...]

    def idle(self, since: float, until: float) -> float:
        """Share of its GPU-time between two times in which nothing was done."""
        busy = sum(
            gpus * max(min(end, until) - max(start, since), 0.0)
            for what, start, end, gpus in self.spans
            if what != "idle"
        )
        return min(max(1.0 - busy / (self.gpus * (until - since)), 0.0), 1.0)

    def shares(self, since: float, until: float) -> dict[str, float]:
        """GPU-time of each kind of work, as a share of all."""
        found: dict[str, float] = {}
        for what, start, end, gpus in self.spans:
            time = gpus * max(min(end, until) - max(start, since), 0.0)
            found[what] = found.get(what, 0.0) + time / (self.gpus * (until - since))
        return found


def busy_rows(scene: Scene, width: int, height: int) -> list[Row]:
    """What the GPUs did of late, a row a lane with its idle share; many lanes as one bar a role and the three worst."""
    view = scene.view
    if not view.n:
        return within([[("no update yet", "muted")]], width, height)
    # phases are reported with updates: what came after the newest one is not known yet
    until = float(view.store.updates.clock(view.n)[-1 if scene.at is None else scene.at])
    since = max(until - _stretch(scene, until), 0.0)
    lanes = _lanes(scene, since, until)
    if not lanes or until <= since:
        return within([[("no phase reported", "muted")]], width, height)
    if len(lanes) > max(min(FEW_LANES, height - 1), 3):
        rows = _by_role(lanes, since, until, width)
    else:
        rows = [_lane_row(lane, since, until, width) for lane in lanes]
    seen = {what for lane in lanes for what, *_ in lane.spans}
    told = (
        f"last {(until - since) / 60:.0f} min"
        if until - since >= 120
        else f"last {until - since:.0f} s"
    )
    known = [what for what in (*WORK, *sorted(seen - set(WORK))) if what in seen and what != "idle"]
    rows = rows[: max(height - 1, 1)]
    return within([*rows, joined([[(told, "muted")], *map(_legend, known)])], width, height)


_ROLE_ORDER = {"generator": 0, "trainer": 1, "evaluator": 2}
_SHORT = {"generator": "gen", "trainer": "train", "evaluator": "eval"}
NAME_CELLS, IDLE_CELLS = 10, 10


def _stretch(scene: Scene, until: float) -> float:
    """Eight updates' worth of the world's clock, at least a minute."""
    view = scene.view
    end = view.n if scene.at is None else scene.at + 1
    clocks = view.store.updates.clock(end)[-STILL_OF - 1 :]
    return max(until - float(clocks[0]), 60.0) if len(clocks) > 1 else max(until, 60.0)


def _lanes(scene: Scene, since: float, until: float) -> list[Lane]:
    """A lane for each GPU, or for each role whose phases name several GPUs at once."""
    by_role: dict[str, list[tuple[int, str, float, float, float]]] = {}
    for role, index, what, start, end, gpus in scene.view.phases(since):
        if start < until:
            by_role.setdefault(role, []).append((index, what, start, end, gpus))
    lanes: list[Lane] = []
    for role in sorted(by_role, key=lambda name: (_ROLE_ORDER.get(name, 9), name)):
        rows, short = by_role[role], _SHORT.get(role, role[:5])
        if any(gpus > 1 for *_, gpus in rows):
            most = max(index + gpus for index, _, _, _, gpus in rows)
            said = scene.view.setting(f"site.{role}s")
            total = float(said) if is_number(said) and said else most
            spans = tuple((what, start, end, gpus) for _, what, start, end, gpus in rows)
            lanes.append(Lane(f"{short} x{total:.0f}", role, max(total, 1.0), spans))
        else:
            for index in sorted(scene.view.store.lanes[role]):  # those that idle all the time too
                spans = tuple(
                    (what, start, end, 1.0) for i, what, start, end, _ in rows if i == index
                )
                lanes.append(Lane(f"{short} {index}", role, 1.0, spans))
    return lanes


def _lane_row(lane: Lane, since: float, until: float, width: int) -> Row:
    """A cell shows what most of its GPU-time went into."""
    room = max(width - NAME_CELLS - IDLE_CELLS, 4)
    step = (until - since) / room
    work: dict[str, Floats] = {"idle": np.full(room, 0.5)}  # idle wins where half of the time is
    edges = since + step * np.arange(room + 1)
    for what, start, end, gpus in lane.spans:
        shared = np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1])
        share = np.maximum(shared, 0.0) * (gpus / (lane.gpus * step))
        work[what] = work.get(what, np.zeros(room)) + share
    names = list(work)
    best = np.argmax(np.stack([work[name] for name in names]), axis=0)
    cells = merged([WORK.get(names[i], OTHER_WORK) for i in best.tolist()])
    return [
        (f"{lane.name:<{NAME_CELLS}}"[:NAME_CELLS], "muted"),
        *cells,
        _idle(lane.idle(since, until)),
    ]


def _by_role(lanes: Sequence[Lane], since: float, until: float, width: int) -> list[Row]:
    """How each role's GPU-time was spent, as a bar; then the three lanes that idle most."""
    rows: list[Row] = []
    room = max(width - NAME_CELLS - IDLE_CELLS, 4)
    for role in dict.fromkeys(lane.role for lane in lanes):
        mine = [lane for lane in lanes if lane.role == role]
        name = f"{_SHORT.get(role, role[:5])} x{sum(lane.gpus for lane in mine):.0f}"
        whole = Lane(
            name,
            role,
            sum(lane.gpus for lane in mine),
            tuple(s for lane in mine for s in lane.spans),
        )
        parts = sorted(whole.shares(since, until).items(), key=lambda item: -item[1])
        ends_ = np.rint(room * np.cumsum([0.0, *(share for _, share in parts)])).astype(int)
        cells: Row = []
        for (what, _), start, end in zip(parts, ends_[:-1], ends_[1:], strict=True):
            glyph, of = WORK.get(what, OTHER_WORK)
            cells.append((glyph * (end - start), of))
        cells.append((WORK["idle"][0] * (room - ends_[-1]), WORK["idle"][1]))
        rows.append(
            [
                (f"{name:<{NAME_CELLS}}"[:NAME_CELLS], "muted"),
                *cut(cells, room),
                _idle(whole.idle(since, until)),
            ]
        )
    worst = sorted(lanes, key=lambda lane: -lane.idle(since, until))[:3]
    return rows + [_lane_row(lane, since, until, width) for lane in worst]


def _idle(share: float) -> tuple[str, str]:
    return f" {100 * share:3.0f}% idle", "watch" if share > 0.3 else "muted"


def _legend(what: str) -> Row:
    glyph, role = WORK.get(what, OTHER_WORK)
    return [(glyph, role), (f" {what}", "muted")]
