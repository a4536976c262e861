"""The top line of a dashboard, and the banner under it when something is wrong: state, run, pace, age, way out."""

from dataclasses import dataclass

from scalerl.events import is_number
from tui.show.rows import Row, cut, ends, joined, row_width, wrapped
from tui.watch.follow import State
from tui.watch.player import Player
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
    """One line. What gives way when it is narrow: the recipe, then the time to go, then the pace."""
    head, age = _state(standing), _age(standing)
    parts = [
        _progress(standing),
        _compute(standing),
        _pace(standing),
        _left(standing),
        _recipe(standing),
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
        glyph, word, role = STATES[session.follower.state]
        if standing.stopped and session.follower.state is State.FINISHED:
            glyph, word = "◼", "STOPPED"
        elif session.child is not None and session.follower.state is State.WAITING:
            word = "STARTING"
        elif (
            session.child is not None
            and session.child.stopping
            and session.follower.state is State.LIVE
        ):
            word = "STOPPING"
        elif session.kind == "remote" and session.follower.state is State.LIVE:
            glyph, word = "◉", "ATTACHED"
    return [(f" {glyph} {word} ", role), (printable(session.name), "strong")]


def _progress(standing: Standing) -> Row:
    view = standing.scene.view
    update, updates = standing.scene.view.last("update"), view.setting("site.updates")
    if update is None:
        return []
    of = f"/{updates}" if is_number(updates) else ""
    return [("step ", "muted"), (f"{update:.0f}{of}", "")]


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
    return standing.player is None and standing.session.follower.state in (State.LIVE, State.STALE)


def _pace(standing: Standing) -> Row:
    if standing.player is not None:
        return [(f"speed {standing.player.speed:.0f}x", "")]
    pace = standing.scene.view.seconds_per_update()
    if pace is None or not _running(standing):
        return []
    return [(f"{1 / pace:.1f} steps/s" if pace < 1 else f"{pace:.1f} s/step", "muted")]


def _left(standing: Standing) -> Row:
    left = _seconds_left(standing)
    return [] if left is None or not _running(standing) else [(f"ETA {duration(left)}", "muted")]


def _recipe(standing: Standing) -> Row:
    view = standing.scene.view
    kind = view.setting("loss.kind")
    if kind is None:
        return []
    k = view.setting("staleness.k")
    head = {"float32": "fp32 head", "bfloat16": "bf16 head"}.get(
        str(view.setting("head_dtype")), ""
    )
    parts = [str(kind), str(view.setting("aggregation")), f"k={k}", head]
    return [(printable("·".join(part for part in parts if part)), "muted")]


def _age(standing: Standing) -> Row:
    follower = standing.session.follower
    age = follower.age_s
    if (
        standing.player is not None
        or age is None
        or follower.state in (State.FINISHED, State.CRASHED)
    ):
        return []
    role = "watch" if follower.state in (State.STALE, State.SILENT) else "muted"
    return [(f"◷{age:.1f}s " if age < 60 else f"◷{duration(age)} ", role)]


# ---- the banner ------------------------------------------------------------------------------------


def banner_rows(standing: Standing, width: int) -> list[Row]:
    """What is wrong, or waited for, with the way out; no row while all is well."""
    session = standing.session
    follower = session.follower
    state = follower.state
    rows: list[Row] = []
    if standing.player is not None:
        rows += _notices(session, width)
    elif state is State.WAITING and session.child is not None:
        rows += wrapped(
            "starting: loading torch takes some two seconds, then the first step ...",
            width,
            "muted",
        )
    elif state is State.WAITING:
        rows += wrapped(f"◌ {follower.says}; checking on, esc to choose another", width, "")
    elif state is State.CATCHING_UP and (share := follower.progress) is not None:
        room = max(width - 40, 10)
        done = round(share * room)
        rows.append(
            [("█" * done, "data"), ("░" * (room - done), "muted"), (f" {follower.says}", "")]
        )
    elif state is State.STALE:
        rows += wrapped(f"▲ {follower.says}", width, "watch")
    elif state is State.SILENT:
        rows += wrapped(f"■ {follower.says}", width, "danger")
        if session.folder is not None:
            rows += wrapped(
                "v log of the run · r takes up a run that was killed · esc back",
                width,
                "muted",
            )
    elif state is State.CRASHED:
        rows += wrapped(f"■ {follower.says}", width, "danger")
        rows += [[(printable(line), "muted")] for line in session.last_words()]
        rows += wrapped(
            "v full log · r take it up again from its last checkpoint · e change the recipe",
            width,
            "",
        )
    elif state is State.FINISHED and standing.stopped:
        rows += wrapped(
            "stopped, and saved: r takes it up where it stands · e changes the recipe for a new run",
            width,
            "muted",
        )
    else:
        rows += _notices(session, width)
    return [cut(row, width) for row in rows]


def _notices(session: Session, width: int) -> list[Row]:
    follower = session.follower
    said = [*([follower.problem] if follower.problem else []), *follower.notices]
    return wrapped("▲ " + "; ".join(said), width, "watch") if said else []
