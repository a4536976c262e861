"""`scalerl run`: progress while a run goes on, a line for each evaluation, and the curve at its end."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from scalerl.events import Event
from scalerl.loop import Control
from scenarios.runs import RunResult, choose_folder, is_begun, run
from scenarios.scenario import Plan, plan
from tui.commands.fitting import fit_sentence, knee_warning
from tui.show.curve import plot_curve
from tui.watch.child import NICENESS, obey
from tui.words import printable

HEADER = "ver.   GPU-h  pass rate    | update trunc. inter. lag (max)  zero length"


def run_plans(
    name: str,
    overrides: Sequence[str],
    *,
    on: str | None = None,
    out: Path | None = None,
    arm: str | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    one_core: bool = False,
    allow_code: bool = False,
    leash: bool = False,
    as_json: bool = False,
) -> list[RunResult]:
    """Every run that was asked for, one after the other or side by side; a stop ends the rest too.

    jobs: how many at a time; 0 means as many as there are cores.
    one_core: train and generate in turns, for others run beside it.
    leash: take commands on stdin, and stop when it closes.
    """
    plans = plan(name, overrides, site=on, arm=arm, seeds=seeds)
    if jobs != 1:
        from tui.commands.side_by_side import Asked, cores, run_side_by_side

        if (at_once := min(jobs or cores(), len(plans))) > 1:
            asked = Asked(name, overrides, on, out, arm, seeds, at_once, allow_code)
            return run_side_by_side(plans, asked, leash=leash, as_json=as_json)
    # all refusals before the first run
    folders = [choose_folder(each, len(plans), out) for each in plans]
    return _run_all(
        plans, folders, one_core=one_core, allow_code=allow_code, leash=leash, as_json=as_json
    )


def run_fork(
    source: str,
    overrides: Sequence[str],
    *,
    out: Path | None = None,
    allow_code: bool = False,
    leash: bool = False,
    as_json: bool = False,
) -> list[RunResult]:
    """Go on from a checkpoint of a run, RUN@UPDATE, in a folder of its own."""
    from scenarios.fork import Source, check_fork, fork, forked_recipe, place_of_fork

    found = Source.of(source)
    recipe = forked_recipe(found, overrides)
    folder = out or place_of_fork(found)
    if is_begun(folder):  # a fork that was stopped is taken up
        check_fork(folder, found)
        forked = Plan(recipe.name, folder.name, recipe)
        choose_folder(forked, 1, folder)
    else:
        forked = fork(found, recipe, folder)
    forked = replace(forked, overrides=tuple(overrides))
    return _run_all([forked], [folder], allow_code=allow_code, leash=leash, as_json=as_json)


def _run_all(
    plans: list[Plan],
    folders: list[Path],
    *,
    one_core: bool = False,
    allow_code: bool,
    leash: bool,
    as_json: bool,
) -> list[RunResult]:
    console = console_of(as_json)
    results: list[RunResult] = []
    with stop_on_interrupt(console) as control:
        # of a screen, which comes first; beside runs of its kind a run is no nicer than alone
        if leash:
            obey(control, niceness=0 if one_core else NICENESS)
        for each, folder in zip(plans, folders, strict=True):
            display = Display(console, each, folder, silent=as_json)
            try:
                with display:
                    result = run(
                        each,
                        folder,
                        listen=display.event,
                        control=control,
                        allow_code=allow_code,
                        overlap=not one_core,
                    )
            except KeyboardInterrupt:
                how = how_to_resume(folder, allow_code)
                raise KeyboardInterrupt(f"interrupted; {how}") from None
            results.append(result)
            if not as_json:
                report(console, result, allow_code=allow_code)
            if control.stop:
                break
    if as_json:
        print_json(results)
    return results


def console_of(as_json: bool) -> Console:
    """Where a command tells what goes on: stdout, unless a document goes there."""
    return Console(
        file=sys.stderr if as_json else sys.stdout,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


class Display:
    """A progress bar where there is a terminal, and a line for each evaluation of the validation set anywhere."""

    def __init__(self, console: Console, plan: Plan, folder: Path, *, silent: bool) -> None:
        assert plan.recipe.site is not None
        self.console, self.plan, self.folder, self.silent = console, plan, folder, silent
        self.updates = plan.recipe.site.updates
        self.last: Event = {}
        self.fault = ""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} updates"),
        )
        live = console.is_terminal and not silent
        self.progress = Progress(
            *columns,
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
            console=console,
            disable=not live,
        )

    def __enter__(self) -> "Display":
        self.progress.start()
        self.task = self.progress.add_task("training", total=self.updates, now="")
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def event(self, event: Event) -> None:
        """Take notice of one event of the run."""
        match event["kind"]:
            case "starting" if not self.silent:
                self.console.print(printable(event["what"]))
            case "run" | "resume" if not self.silent:
                self._head(event)
            case "update":
                self.last = event
                now = f"reward {event['reward']:+.2f}, {event['gpu_h']:.0f} GPU-h"
                self.progress.update(self.task, completed=event["update"], now=now)
            case "eval" if event["set"] == "validation" and not self.silent:
                self.console.print(evaluation_line(event, self.last))
            case "warning" if not self.silent:
                self.console.print(printable(f"warning: {event['what']}"))
            case "fault" if "group" in event and not self.silent:  # one that the run survives
                if event["cause"] != self.fault:  # an engine is lost with all its groups
                    self.console.print(printable(f"fault: {event['cause']}"))
                self.fault = event["cause"]

    def _head(self, event: Event) -> None:
        """What runs, where, and what the columns below mean; first printed when it has really begun."""
        recipe = self.plan.recipe
        about = f"{self.plan.name} / {self.plan.arm}, seed {recipe.seed}"
        about += "".join(f", {printable(override)}" for override in self.plan.overrides)
        resumed = f", resumed at {event['gpu_h']:.1f} GPU-h" if event["kind"] == "resume" else ""
        self.console.print(
            f"{about}{resumed}\nalgorithm {recipe.algorithm_id()}, run folder {self.folder}\n{HEADER}"
        )


def evaluation_line(event: Event, update: Event) -> str:
    """An evaluation, and beside it what the newest update was like; stands under `HEADER`.

    The update is a later one: an evaluation takes its time, and training does not wait for it.
    """
    rate = f"{event['pass_rate']:.3f} ±{event['se']:.3f}"
    shown = f"{event['version']:>4} {event['C']:7.1f}  {rate} |"
    if not update:
        return shown
    lags = update["lag_tokens"]
    mean = sum(lag * count for lag, count in enumerate(lags)) / max(1, sum(lags))
    lag = f"{mean:.1f} ({max(0, len(lags) - 1)})"
    return (
        f"{shown} {update['update']:>6} {update['truncated']:>6.1%} {update['interrupted']:>6.1%}"
        f" {lag:>9} {update['zero_variance']:>5.0%} {update['length_mean_tokens']:>6.1f}"
    )


def report(console: Console, result: RunResult, *, allow_code: bool) -> None:
    """The curve, what was fitted, what it cost, where it is, and how to go on."""
    points = [(event["C"], event["pass_rate"]) for event in result.evaluations]
    width = min(console.width, 110)
    if points:
        console.print("\n".join(["", *plot_curve(points, result.fit, width=width, height=20)]))
    if result.fit is not None:
        console.print(fit_sentence(result.fit, "GPU-h", "measured"))
        if warning := knee_warning(result.fit, points[-1][0]):
            console.print(warning)
    else:
        console.print(f"no fit: {result.no_fit}")
    console.print(cost_sentence(result.gpu_hours))
    console.print(f"run folder: {result.folder}")
    if result.fit is not None:
        console.print(f"how far to trust the fit:  scalerl fit {result.folder}")
    if result.status == "stopped":
        console.print(f"stopped; {how_to_resume(result.folder, allow_code)}")
    elif result.status != "done":
        console.print(f"the run ended early: {result.status}")


def how_to_resume(folder: Path, allow_code: bool) -> str:
    flag = " --allow-code" if allow_code else ""
    return f"to resume:  scalerl run {folder}/recipe.toml --out {folder}{flag}"


def cost_sentence(gpu_hours: dict[str, dict[str, float]]) -> str:
    """GPU-hours by role, C first."""
    total = {role: sum(phases.values()) for role, phases in gpu_hours.items()}
    idle = {role: gpu_hours[role]["idle"] / max(total[role], 1e-9) for role in gpu_hours}
    evaluation = total["evaluator"] - gpu_hours["evaluator"]["idle"]
    return (
        f"C = {total['generator'] + total['trainer']:.1f} GPU-h:"
        f" generators {total['generator']:.1f} ({idle['generator']:.0%} idle),"
        f" trainers {total['trainer']:.1f} ({idle['trainer']:.0%} idle)\n"
        f"evaluation, outside C: {evaluation:.1f} GPU-h"
    )


def print_json(results: Sequence[RunResult]) -> None:
    print(json.dumps({"runs": [document(result) for result in results]}, indent=2))


def document(result: RunResult) -> dict[str, Any]:
    """A run as JSON; the passes of each prompt are in its events, and too many to read here."""
    evaluations = [{k: v for k, v in e.items() if k != "passes"} for e in result.evaluations]
    return {**asdict(result), "folder": str(result.folder), "evaluations": evaluations}


@contextmanager
def stop_on_interrupt(console: Console) -> Iterator[Control]:
    """The first Ctrl-C asks the run to stop after the update under way, the second one ends it at once.

    SIGTERM asks as well, however often it comes.
    """
    control = Control()

    def interrupt(number: int, frame: Any) -> None:
        if control.stop:
            raise KeyboardInterrupt
        control.stop = True
        console.print("stopping after this update (Ctrl-C again to end at once)")

    def terminate(number: int, frame: Any) -> None:
        control.stop = True

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield control
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
