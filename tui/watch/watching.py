"""Watching a run: its log is read and its curve fitted beside whatever shows it, which is told when to look.

Plain asyncio, no screen: the dashboard asks for a scene and paints it.
"""

import asyncio
import time
from collections.abc import Callable

from scalerl.curves.curve import VALIDATION
from scalerl.errors import InputError
from tui.watch.analysis import (
    NEWEST_UPDATES,
    NOTHING,
    Analysis,
    Stage,
    Window,
    analyse,
    before,
    remembered,
    unfitted,
)
from tui.watch.follow import State
from tui.watch.happenings import Happening, happenings
from tui.watch.player import Player
from tui.watch.scene import Scene
from tui.watch.session import Session
from tui.watch.store import RunView

LOOK_EVERY_S = 0.3  # while catching up
FIT_EVERY_S = 0.5  # at most, as a replay moves on
FIT_AFTER = 8  # updates without a new evaluation: alarms look at updates too


class Watch:
    """One run as it is watched.

    evaluation_set: whose curve is fitted. window: of the points that the fit uses. frozen_at: the time of a
    frozen view, in seconds of the world's clock, None while it follows the run. player: of a recording,
    once it has been read.
    marks: the alarms of a whole recording.
    """

    def __init__(self, session: Session, look: Callable[[], None]) -> None:
        """look: called whenever there is something new to be seen."""
        self.session, self._look = session, look
        self.analysis: Analysis = NOTHING
        self.evaluation_set = VALIDATION
        self.window: Window = None
        self.frozen_at: float | None = None
        self.player: Player | None = None
        self.marks: list[Happening] = []
        self._timeline = (0, 0)  # resumes and restarts: what was known before them is void
        self._wanted = asyncio.Event()
        self._analysed: tuple[int, int, Window] | None = None

    def scene(self, C: float | None = None) -> Scene:
        """The run now, or where the view stands; C: the compute that is looked at. Asks for a fit if it is due."""
        view = self._view()
        evals = len(view.evals(self.evaluation_set))
        due = (evals, view.n // FIT_AFTER, self.window)
        if self._timeline != (now := (self.session.store.resumed, self.session.follower.resets)):
            if now[1] != self._timeline[1]:
                self.frozen_at = None  # of a run that is not there any more
            self._timeline = now
            self.analysis, self._analysed = NOTHING, None
        elif not evals:
            self.analysis, self._analysed = NOTHING, None
        elif (
            self.player is not None and self._analysed is not None and due[:2] < self._analysed[:2]
        ):
            known = view.evals(self.evaluation_set)
            self.analysis = before(self.analysis, known, view.last("update"))
        if evals and due != self._analysed and not self.session.behind:
            self._analysed = due
            self._wanted.set()
        at = None if C is None else view.row_at(C)
        return Scene(view, self.analysis, at, self.evaluation_set)

    def _view(self) -> RunView:
        return self.session.store.view(
            self.player.cursor if self.player is not None else self.frozen_at
        )

    def choose(self, evaluation_set: str) -> None:
        """Look at another set from now on, at all of its points: a window is of the points of one set."""
        self.evaluation_set, self.window, self._analysed = evaluation_set, None, None
        evals = self._view().evals(evaluation_set)
        self.analysis = unfitted(evals, self.session.name, evaluation_set, self.analysis)

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        return self.session.state in (State.FINISHED, State.CRASHED)

    async def follow(self, every_s: float, complain: Callable[[str], None]) -> None:
        """Read the log for as long as it is watched, never for long at a time."""
        shown = 0.0
        while True:
            try:
                came = self.session.pump()
            except InputError as error:
                complain(str(error))
                came = True
            behind = self.session.behind
            if self.session.follower.is_whole and self.player is None:
                await self._open_recording()
            now = time.monotonic()
            # a live run is looked at in any case: its age is on the screen
            if (not behind and self.player is None) or (came and now - shown > LOOK_EVERY_S):
                self._look()
                shown = now
            await asyncio.sleep(0.001 if behind else every_s)

    async def fit(self) -> None:
        """Fit again whenever there is something new to fit, one fit at a time, in a thread."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            asked = (self._timeline, self.evaluation_set, self.window)
            scene = self.scene()
            found = await self._fitted(scene, self.window)
            if asked != (self._timeline, self.evaluation_set, self.window):
                continue  # of a run, a set or a window that is gone; another was asked for
            if self.player is not None:
                now = self.scene().view
                back = now.n < scene.view.n
                known = now.evals(self.evaluation_set)
                self.analysis = before(found, known, now.last("update")) if back else found
            else:
                self.analysis = remembered(found, self.analysis)
            self._look()
            await asyncio.sleep(FIT_EVERY_S)

    async def _fitted(self, scene: Scene, window: Window) -> Analysis:
        view = scene.view
        evals = list(view.evals(scene.evaluation_set))
        updates = view.update_events(NEWEST_UPDATES)
        try:
            return await asyncio.to_thread(
                analyse, evals, updates, self.session.name, window, scene.evaluation_set
            )
        except Exception as error:  # a log of another program can hold anything
            return Analysis(Stage.NONE, None, None, f"the fit failed on this log: {error!r}")

    async def _open_recording(self) -> None:
        """Begin to play, and find the alarms of the whole: panels know only what lies before the cursor."""
        store = self.session.store
        if not store.updates.n:
            return
        whole = Scene(store.view())
        self.player = Player(store.updates.clock(store.updates.n).tolist(), store.clock)
        self._look()
        found = await self._fitted(whole, None)
        self.marks = [e for e in happenings(Scene(whole.view, found)) if e.level != "ok"]
        self._look()

    def freeze(self) -> None:
        """Freeze the view, or follow again; of a recording, pause or play. The run goes on."""
        if self.player is not None:
            self.player.toggle()
        else:
            self.frozen_at = None if self.frozen_at is not None else self.session.store.clock

    def move_to(self, session: Session) -> None:
        """Watch the same run through another reader."""
        self.session.close()
        self.session = session
