"""The top line of a dashboard, and the banner under it when something is wrong: state, run, pace, age, way out."""

from collections.abc import Mapping
from dataclasses import dataclass

from scalerl.curves.alarms import GRAVEST_FIRST
from scalerl.events import is_number
from tui.show.gauges import recent_truncation, truncation_level
from tui.show.rows import LEVEL_GLYPHS, Row, cut, ends, joined, row_width, wrapped
from tui.watch.follow import State
from tui.watch.player import Player
from tui.watch.recipes import STANDARD, recipe_told
from tui.watch.scene import Scene
from tui.watch.session import Session
from tui.words import amount, duration, printable

STATES = {
    State.WAITING: ("◌", "WAITING", "muted"),
    State.CATCHING_UP: ("◐", "CATCHING UP", "data"),
    State.LIVE: ("●", "LIVE", "ok"),
    State.STALE: ("▲", "STALE", "watch"),
    State.SILENT: ("■", "SILENT", "danger"),
    State.FINISHED: ("✔", "DONE", "ok"),
    State.CRASHED: ("■", "CRASHED", "danger"),
}


MOST_ROWS = 9  # of the banner: a path may be very long


@dataclass(frozen=True)
class Standing:
    """How a run stands for the one who looks at it. paused: the view is frozen, the run is not."""

    session: Session
    scene: Scene
    paused: bool = False
    player: Player | None = None

    @property
    def stopped(self) -> bool:
        """Whether the run ended by a stop that was asked for."""
        done = self.scene.view.store.done
        return done is not None and done.get("status") == "stopped"


def status_row(standing: Standing, width: int) -> Row:
    """One line. What gives way when it is narrow: the time to go, the pace, the recipe, the compute."""
    head, age = joined([_state(standing), _alarm(standing)]), _age(standing)
    parts = [
        _progress(standing),
        _compute(standing),
        _recipe(standing),
        _pace(standing),
        _left(standing),
    ]
    for keep in range(len(parts), 0, -1):
        row = joined([head, *parts[:keep]])
        if row_width([*row, *age]) + 2 <= width:
            return ends(row, age, width)
    return ends(joined([head, parts[0]]), age, width)


def _state(standing: Standing) -> Row:
    session, player = standing.session, standing.player
    if player is not None:
        glyph, word, role = ("⏵", "REPLAY", "data") if player.playing else ("‖", "REPLAY", "muted")
    elif standing.paused:
        glyph, word, role = "‖", "VIEW PAUSED", "watch"
    else:
        glyph, word, role = STATES[session.state]
        if standing.stopped and session.state is State.FINISHED:
            glyph, word = "◼", "STOPPED"
        elif session.child is not None and session.state is State.WAITING:
            word = "STARTING"
        elif session.child is not None and session.child.stopping and session.state is State.LIVE:
            word = "STOPPING"
        elif session.kind == "remote" and session.state is State.LIVE:
            glyph, word = "◉", "ATTACHED"
    return [(f" {glyph} {word} ", role), (printable(session.name), "strong")]


def _progress(standing: Standing) -> Row:
    view = standing.scene.view
    update, updates = standing.scene.view.last("update"), view.setting("site.updates")
    if update is None:
        return []
    of = f"/{updates}" if is_number(updates) else ""
    return [("update ", "muted"), (f"{update:.0f}{of}", "")]


def _compute(standing: Standing) -> Row:
    C = standing.scene.view.last("gpu_h")
    return [] if C is None else [(f"{amount(C)} GPU-h", "")]


def _seconds_left(standing: Standing) -> float | None:
    view = standing.scene.view
    pace, updates = view.seconds_per_update(), view.setting("site.updates")
    done = view.last("update")
    if pace is None or done is None or not is_number(updates) or standing.player is not None:
        return None
    return max(updates - done, 0.0) * pace


def _running(standing: Standing) -> bool:
    return standing.player is None and standing.session.state in (State.LIVE, State.STALE)


def _pace(standing: Standing) -> Row:
    if standing.player is not None:
        return [(f"speed {standing.player.speed:.0f}x", "")]
    pace = standing.scene.view.seconds_per_update()
    if pace is None or not _running(standing):
        return []
    return [(f"{1 / pace:.1f} updates/s" if pace < 1 else f"{pace:.1f} s/update", "muted")]


def _left(standing: Standing) -> Row:
    left = _seconds_left(standing)
    return [] if left is None or not _running(standing) else [(f"ETA {duration(left)}", "muted")]


def _recipe(standing: Standing) -> Row:
    """In what the run differs from ScaleRL."""
    told = recipe_told(standing.scene.view.head)
    return [(told, "muted" if told == STANDARD else "fit")] if told else []


def _alarm(standing: Standing) -> Row:
    """The gravest alarm, from "danger" on; panel 5 says the rest."""
    found = standing.scene.analysis.alarms
    grave = next(
        (each for level in GRAVEST_FIRST[:2] for each in found if each.level == level), None
    )
    if grave is None:
        return []
    return [
        (f"{LEVEL_GLYPHS[grave.level]} {grave.level.upper()}: {grave.name}", "danger"),
        (" (5)", "muted"),
    ]


def _age(standing: Standing) -> Row:
    follower = standing.session.follower
    age = follower.age_s
    if (
        standing.player is not None
        or age is None
        or standing.session.state in (State.FINISHED, State.CRASHED)
    ):
        return []
    role = "watch" if standing.session.state in (State.STALE, State.SILENT) else "muted"
    return [(f"◷{age:.1f}s " if age < 60 else f"◷{duration(age)} ", role)]


# ---- the banner ------------------------------------------------------------------------------------


def banner_rows(standing: Standing, width: int) -> list[Row]:
    """What is wrong, or waited for, with the way out; no row while all is well."""
    session = standing.session
    if standing.player is not None:
        rows = _notices(session, width)
    elif session.state is State.WAITING:
        rows = _waiting(session, width)
    elif session.state is State.CATCHING_UP and (share := session.follower.progress) is not None:
        room = max(width - 40, 10)
        done = round(share * room)
        bar: Row = [("█" * done, "data"), ("░" * (room - done), "muted")]
        rows = [[*bar, (f" {session.says}", "")]]
    elif session.state in (State.STALE, State.SILENT, State.CRASHED):
        rows = _broken(session, width)
    elif session.state is State.FINISHED and standing.stopped:
        keys = "r takes it up where it stands · e changes the recipe for a new run"
        rows = wrapped(f"stopped, and saved: {keys}", width, "muted")
    else:
        rows = _notices(session, width)
    return [cut(row, width) for row in rows[:MOST_ROWS]]


def _waiting(session: Session, width: int) -> list[Row]:
    if session.child is not None:
        words = "starting: loading torch takes some two seconds, then the first update ..."
        return wrapped(words, width, "muted")
    return wrapped(f"◌ {session.says}; checking on, esc to choose another", width)


def _broken(session: Session, width: int) -> list[Row]:
    """What is wrong, the last words of the process, and the keys that help."""
    if session.state is State.STALE:
        return wrapped(f"▲ {session.says}", width, "watch")
    rows = wrapped(f"■ {session.says}", width, "danger")
    if session.state is State.SILENT:
        keys = "v log of the run · r takes up a run that was killed · esc back"
        return [*rows, *(wrapped(keys, width, "muted") if session.folder is not None else [])]
    rows += [[(printable(line), "muted")] for line in session.last_words()]
    keys = "v full log · r take it up again from its last checkpoint · e change the recipe"
    return [*rows, *wrapped(keys, width)]


def _notices(session: Session, width: int) -> list[Row]:
    follower = session.follower
    said = [*([follower.problem] if follower.problem else []), *follower.notices]
    return wrapped("▲ " + "; ".join(said), width, "watch") if said else []


# ---- the tabs of a narrow screen -------------------------------------------------------------------


def tab_row(scene: Scene, titles: Mapping[str, str], here: str) -> Row:
    """The panels by number, the one that is shown marked; truncation and alarms stay in sight.

    titles: of each panel by its name.
    """
    share = recent_truncation(scene)
    marks = {}
    if share is not None:
        marks["truncation"] = f" {LEVEL_GLYPHS[truncation_level(share)]}{100 * share:.0f}%"
    if scene.analysis.alarms:
        marks["happened"] = f" {LEVEL_GLYPHS[scene.analysis.alarms[0].level]}"
    row: Row = []
    for i, (name, title) in enumerate(titles.items(), 1):
        row.append((f" {i} ", "key"))
        row.append((f"{title}{marks.get(name, '')} ", "cursor" if name == here else "muted"))
    return row
