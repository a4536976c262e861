"""The dashboard of one run: live, attached or replayed. Panels read the same scene, whatever its source.

Longer than most files: its CSS and its keys take a third.
"""

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical

from tui.screens.run_keys import RunKeys
from tui.show.rows import Row
from tui.show.scrub import scrub_rows
from tui.show.status import Standing, banner_rows, status_row, tab_row
from tui.show.terms import Term, terms
from tui.watch.player import Player
from tui.watch.scene import empty_scene
from tui.watch.session import Session
from tui.watch.watching import Watch
from tui.widgets.fit_panel import FitPanel
from tui.widgets.key_line import KeyLine
from tui.widgets.keys import key
from tui.widgets.lines import Line, ScrubBar
from tui.widgets.panel import Panel
from tui.widgets.plot import PlotPanel
from tui.widgets.side import (
    BusyPanel,
    HappenedPanel,
    LagPanel,
    SamplePanel,
    TruncationPanel,
)

TICK_S = 0.1  # of a replay
NARROW, WIDE, SHORT = 110, 160, 28
PANELS = ("fit", "truncation", "lag", "busy", "happened", "sample")
TITLES = (
    "scaling fit",
    "truncated completions",
    "off-policy lag",
    "who is busy",
    "what just happened",
    "completions",
)
TABS = ("fit", "trunc", "lag", "busy", "events", "text")


class Dashboard(RunKeys):
    """One run on screen: paints what `Watch` sees, and turns keys into requests to the app."""

    CSS = """
    Dashboard {
        layout: vertical;
        #body { height: 1fr; }
        #left { width: 3fr; }
        #right { width: 2fr; }
        #third { width: 2fr; display: none; }
        #fit { height: 1fr; }
        #happened { height: 9; }
        #truncation { height: 9; }
        #lag { height: 1fr; min-height: 6; }
        #busy { height: 6; }
        #sample { height: 1fr; }
        #banner { height: auto; display: none; padding: 0 1; }
        #tabs { display: none; }
        #scrub { display: none; }
        &.-replay #scrub { display: block; }
        &.-wide #third { display: block; }
        &.-wide #happened { height: 12; }
        &.-normal.-panel-sample #third { display: block; }
        &.-normal.-panel-sample #right { display: none; }
        &.-narrow {
            #tabs { display: block; }
            #left, #right, #third { display: none; width: 1fr; }
            #fit, #happened, #truncation, #lag, #busy { display: none; height: 1fr; }
            &.-panel-fit #left, &.-panel-happened #left { display: block; }
            &.-panel-truncation #right, &.-panel-lag #right, &.-panel-busy #right { display: block; }
            &.-panel-sample #third { display: block; }
            &.-panel-fit #fit, &.-panel-happened #happened, &.-panel-truncation #truncation,
            &.-panel-lag #lag, &.-panel-busy #busy { display: block; }
        }
    }
    """
    TITLE = "The dashboard of a run"
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "back", "back", show=True),
        key(
            "space", "pause", "pause", "freeze the view, or the replay; the run goes on", show=True
        ),
        *(
            key(str(i + 1), f"panel('{name}')", title, f"panel {i + 1}: {title}")
            for i, (name, title) in enumerate(zip(PANELS, TITLES, strict=True))
        ),
        key("tab", "next_panel(1)", "next panel"),
        key("shift+tab", "next_panel(-1)", "panel before"),
        key("f", "full", "full screen", "the panel one is at over the whole screen"),
        key("y", "copy", "copy", "copy the panel as text"),
        key("comma", "replay_event(-1)", "alarm before", "replay: back to the alarm before"),
        key(
            "full_stop", "replay_event(1)", "next alarm", "replay: on to the next alarm", show=True
        ),
        key("less_than_sign", "replay_speed(-1)", "slower", "replay: half the speed"),
        key("greater_than_sign", "replay_speed(1)", "faster", "replay: twice the speed", show=True),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.watched = Watch(session, self.look)
        self.scene = empty_scene()
        self._at = "fit"  # the panel one went to last
        # kept by name: the run may be looked at once more while the screen is taken away
        self.status, self.banner = Line("status"), Line("banner")
        self.tabs, self.scrub = Line("tabs"), ScrubBar("scrub")
        self.fit, self.happened, self.truncation = FitPanel(), HappenedPanel(), TruncationPanel()
        self.lag, self.busy, self.sample = LagPanel(), BusyPanel(), SamplePanel()

    # ---- building ----

    def compose(self) -> ComposeResult:
        yield self.status
        yield self.banner
        yield self.tabs
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield self.fit
                yield self.happened
            with Vertical(id="right"):
                yield self.truncation
                yield self.lag
                yield self.busy
            with Vertical(id="third"):
                yield self.sample
        yield self.scrub
        yield KeyLine()

    def on_mount(self) -> None:
        self._choose_slots()
        self.fit.ghosts = self.ghosts()
        self.fit.focus()
        self.run_worker(
            self.watched.follow(self.home_app.read_every_s, self.home_app.complain), name="follow"
        )
        self.run_worker(self.watched.fit(), name="fit")
        if self.session.kind == "recording":
            self.set_interval(TICK_S, self._tick)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.look)

    def on_unmount(self) -> None:
        self.session.close()

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        narrow = width < NARROW or height < SHORT
        self.set_class(narrow, "-narrow")
        self.set_class(not narrow and width < WIDE, "-normal")
        self.set_class(not narrow and width >= WIDE, "-wide")
        self._choose_slots()
        self.call_after_refresh(self.look)

    @property
    def player(self) -> Player | None:
        return self.watched.player

    @property
    def panel(self) -> str:
        """The panel that one is at."""
        focused = self.focused
        return focused.id if focused is not None and focused.id in PANELS else self._at

    # ---- looking ----

    def look(self) -> None:
        """Show the run as it is, or as it stood where the view stands."""
        if not self.is_attached or not self.is_current:
            return
        self.scene = self.watched.scene(self.fit.crosshair_compute())
        self.offer_sets()
        self._show_panels()
        self._show_lines()

    def _show_panels(self) -> None:
        self.fit.live = not self.watched.over or self.player is not None
        if self._visible(self.fit):
            self.fit.show_scene(self.scene)
        for panel in (self.truncation, self.lag, self.busy, self.happened, self.sample):
            if self._visible(panel):
                panel.show(self.scene)

    def _visible(self, panel: Panel) -> bool:
        return (
            panel.display
            and panel.parent is not None
            and bool(getattr(panel.parent, "display", True))
        )

    def _show_lines(self) -> None:
        standing = Standing(
            self.session, self.scene, self.watched.frozen_at is not None, self.player
        )
        width = self.size.width
        self.status.show([status_row(standing, width)])
        banner = self.banner
        said = banner_rows(standing, max(width - 2, 10))
        banner.display = bool(said)
        banner.styles.height = max(len(said), 1)
        banner.show(said)
        if self.has_class("-narrow"):
            self.tabs.show([self._tabs(width)])
        if self.player is not None:
            self._show_bar(self.player, width)

    def _show_bar(self, player: Player, width: int) -> None:
        bar = self.scrub
        if bar.player is None:
            bar.player = player
            self.add_class("-replay")
            bar.focus()
        bar.show(scrub_rows(player, self.watched.marks, width))

    def _tabs(self, width: int) -> Row:
        if width < 60 or self.size.height < 18:
            return [("enlarge to 80x24 for more; 1-6 choose a panel", "watch")]
        return tab_row(self.scene, dict(zip(PANELS, TABS, strict=True)), self._at)

    # ---- replay ----

    def _tick(self) -> None:
        if self.player is not None and self.player.tick(TICK_S):
            self.look()

    def action_replay_event(self, by: int) -> None:
        if self.player is not None:
            self.player.toward([each.clock for each in self.watched.marks], by)
            self.look()

    def action_replay_speed(self, by: int) -> None:
        if self.player is not None:
            self.player.faster(by)
            self.look()

    @on(ScrubBar.Moved)
    def _scrubbed(self) -> None:
        self.look()

    # ---- keys ----

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action.startswith("replay"):
            return self.player is not None
        return super().check_action(action, parameters)

    def action_back(self) -> None:
        if self.maximized is not None:
            self.minimize()
        elif self.fit.windowing:
            self.fit.action_toggle_window()
        elif self.fit.crosshair is not None:
            self.fit.move_crosshair(None)
        else:
            self.home_app.go_back()

    def action_panel(self, name: str) -> None:
        """Go to a panel; where one alone is shown, show that one."""
        self._at = name
        self._choose_slots()
        self.query_one(f"#{name}", Panel).focus()
        self.call_after_refresh(self.look)

    def action_next_panel(self, by: int) -> None:
        """The next of the panels, shown or not, and of the bar of a replay."""
        stops: list[str] = [*PANELS, "scrub"] if self.player is not None else [*PANELS]
        here = "scrub" if self.focused is self.scrub else self.panel
        wanted = stops[(stops.index(here) + by) % len(stops)]
        if wanted == "scrub":
            self.scrub.focus()
        else:
            self.action_panel(wanted)

    def _choose_slots(self) -> None:
        """Which panel has the screen where there is room for one, or the right column where there are two.

        Classes are set only where they differ: each change lays the whole screen out again.
        """
        narrow = self.has_class("-narrow")
        wanted = f"-panel-{self._at}" if narrow or self._at == "sample" else ""
        for each in [c for c in self.classes if c.startswith("-panel-") and c != wanted]:
            self.remove_class(each)
        if wanted:
            self.add_class(wanted)

    def action_full(self) -> None:
        if self.maximized is not None:
            self.minimize()
        else:
            self.maximize(self.query_one(f"#{self.panel}"))
        self.call_after_refresh(self.look)

    def action_pause(self) -> None:
        """Freeze the view; in a replay, the replay. The run goes on."""
        self.watched.freeze()
        self.look()

    @on(PlotPanel.CrosshairMoved)
    def _crosshair_moved(self) -> None:
        self.look()

    @on(FitPanel.WindowMoved)
    def _window_moved(self, event: FitPanel.WindowMoved) -> None:
        self.watched.window = event.window
        self.look()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self.query_one(f"#{self.panel}", Panel).plain)
        self.notify(f"copied panel {PANELS.index(self.panel) + 1} as text")

    # ---- help ----

    def help_terms(self) -> tuple[list[Term], str | None]:
        """(terms of this screen with their values, the one to begin at)."""
        found = terms(self.scene, self.panel)
        happened = self.happened
        if self.panel == "happened" and happened.found:
            term = happened.found[happened.chosen].term
            return found, term or found[0][0]
        return found, found[0][0]
