"""The command line. Each command parses, calls one function below it, and prints; nothing heavy is imported before."""

import io
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tui.cli_curves import compare_command, fit_command
from tui.cli_screens import Theme, has_terminal, open_app, serve_command, watch_command
from tui.console import INTERRUPTED, Json, errors, fail

if TYPE_CHECKING:
    from scenarios.runs import RunResult

app = typer.Typer(
    name="scalerl",
    help="Understand, test and plan LLM training with RL: the ScaleRL recipe, its scaling curve, on a laptop.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("fit")(fit_command)
app.command("compare")(compare_command)
app.command("watch")(watch_command)
app.command("serve")(serve_command)


@app.callback(invoke_without_command=True)
def bare(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="Replay the bundled recording.")] = False,
    theme: Theme = None,
) -> None:
    """Without a command: the screens; without a terminal, the scenario `tiny` and its scaling curve as text."""
    if context.invoked_subcommand is not None:
        return
    if demo or theme is not None or has_terminal():
        open_app(theme=theme, demo=demo)
    else:
        run("tiny")


Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="e.g. loss.eps_max=4")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Run folder; an unfinished run in it is resumed."),
]
ArmName = Annotated[
    str | None, typer.Option("--arm", metavar="ARM", help="Only this arm of the scenario.")
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds", metavar="N", min=1, help="How many seeds, counted up from the recipe's."
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", metavar="J", min=0, help="Runs side by side, a core each; 0: one for each core."
    ),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import the Python functions that the recipe names.")
]


@app.command("run")
def run_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME_OR_FILE", help="A scenario, a recipe, or a .toml file."),
    ] = None,
    overrides: Overrides = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="SITE", help="Where it runs: a site or a .toml file."),
    ] = None,
    out: Out = None,
    arm: ArmName = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    allow_code: AllowCode = False,
    list_: Annotated[bool, typer.Option("--list", help="List what can be run by name.")] = False,
    fork_of: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN@UPDATE",
            help="Go on from a checkpoint of a run, with KEY=VALUE changed.",
        ),
    ] = None,
    leash: Annotated[bool, typer.Option("--leash", hidden=True)] = False,
    one_core: Annotated[bool, typer.Option("--one-core", hidden=True)] = False,
    as_json: Json = False,
) -> None:
    """Run a scenario, a named recipe or a recipe file; resumes if DIR holds an unfinished run."""
    if list_:
        from tui.commands.listing import list_names

        list_names(as_json)
    elif fork_of is not None:
        if on or arm or seeds is not None or jobs != 1:
            fail(
                "--from goes on with a run as it is: --on, --arm, --seeds and --jobs do not go with it"
            )
        from tui.commands.running import run_fork

        with errors():
            results = run_fork(
                fork_of,
                [*([name] if name else []), *(overrides or [])],
                out=out,
                allow_code=allow_code,
                leash=leash,
                as_json=as_json,
            )
        _exit_as(results)
    elif name is None:
        fail("say what to run: a NAME from `scalerl run --list`, or a .toml file")
    else:
        run(
            name,
            overrides or [],
            on=on,
            out=out,
            arm=arm,
            seeds=seeds,
            jobs=jobs,
            one_core=one_core,
            allow_code=allow_code,
            leash=leash,
            as_json=as_json,
        )


@app.command("cluster")
def cluster_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME_OR_FILE", help="A scenario, a recipe, or a .toml file.")
    ],
    overrides: Overrides = None,
    on: Annotated[
        str, typer.Option("--on", metavar="SITE", help="A cluster site or a .toml file.")
    ] = "cpu-cluster",
    out: Out = None,
    arm: ArmName = None,
    seeds: Seeds = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Run it on a cluster site: vLLM generators and FSDP2 trainers, launched on Ray."""
    run(
        name,
        overrides or [],
        on=on,
        out=out,
        arm=arm,
        seeds=seeds,
        allow_code=allow_code,
        as_json=as_json,
    )


@app.command("check")
def check_command(
    function: Annotated[
        str | None,
        typer.Argument(metavar="FILE.py:FN|MODULE:FN", help="A policy loss; its code is run."),
    ] = None,
    keywords: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Further arguments of it, e.g. eps_max=5.0"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", metavar="KIND", help="What it is meant to be: cispo, grpo, dapo, gspo, ..."
        ),
    ] = None,
    aggregation: Annotated[
        str | None,
        typer.Option(
            "--aggregation",
            metavar="HOW",
            help="prompt_mean, sample_mean, token_mean, constant or sum.",
        ),
    ] = None,
    convention: Annotated[
        str | None,
        typer.Option("--convention", metavar="trl|verl|prime-rl", help="Whose arguments it has."),
    ] = None,
    cap: Annotated[
        float | None, typer.Option("--cap", help="Cap on the ratio that is meant, e.g. 5.")
    ] = None,
    clip_low: Annotated[
        float | None, typer.Option("--clip-low", help="Lower clip that is meant, e.g. 0.2.")
    ] = None,
    clip_high: Annotated[
        float | None, typer.Option("--clip-high", help="Upper clip that is meant, e.g. 0.28.")
    ] = None,
    dual: Annotated[
        float | None, typer.Option("--dual", help="Dual clip that is meant, e.g. 3.")
    ] = None,
    examples: Annotated[
        int, typer.Option("--examples", metavar="N", min=1, help="Inputs per invariant.")
    ] = 40,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="SECONDS", min=0, help="Stop drawing inputs after this."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the inputs.")] = 0,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="ID", help="Leave this invariant out; repeatable."),
    ] = None,
    half: Annotated[
        bool, typer.Option("--half", help="Log-probs may come in bfloat16 or float16.")
    ] = False,
    any_mask: Annotated[
        bool, typer.Option("--any-mask", help="The mask may come as integers or floats.")
    ] = False,
    first: Annotated[bool, typer.Option("--first", help="End at the first violation.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the laws, in their order.")] = False,
    as_json: Json = False,
) -> None:
    """Search for inputs on which a policy loss of yours breaks a law that it should obey."""
    from tui.commands.checking import check_function, list_laws

    with errors():
        if list_:
            list_laws()
            return
        if function is None:
            fail("say which loss to check: FILE.py:FN or MODULE:FN, or --list for the laws")
        kept = check_function(
            function,
            keywords or [],
            convention,
            as_json=as_json,
            kind=kind,
            aggregation=aggregation,
            cap=cap,
            clip_low=clip_low,
            clip_high=clip_high,
            dual=dual,
            examples=examples,
            budget_s=budget,
            seed=seed,
            skip=skip or [],
            half=half,
            any_mask=any_mask,
            first=first,
        )
    raise typer.Exit(0 if kept else 1)


@app.command("doctor")
def doctor_command(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run folder or its events.jsonl, to be audited."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what this machine can run, or what a run folder is worth: what is torn, edited, lost."""
    from tui.commands.doctor import examine, examine_run, show

    if run is not None:
        with errors():
            fine = examine_run(run, as_json=as_json)
        raise typer.Exit(0 if fine else 1)
    checks = examine()
    show(checks, as_json=as_json)
    raise typer.Exit(0 if all(check.ok for check in checks if check.needed) else 1)


@app.command("simulate")
def simulate_command(
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, help="Play this one, and tell all about it."),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="How many seeds to play.")
    ] = 200,
    first: Annotated[
        int, typer.Option("--first", metavar="N", min=0, help="The first of them.")
    ] = 0,
    faults: Annotated[
        list[str] | None,
        typer.Option("--faults", metavar="KIND,...", help="Only these; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Play the loop under seeded faults, and hold it to its invariants after every event."""
    from tui.commands.simulating import simulate

    with errors():
        held = simulate(seed, seeds, first, faults or [], as_json)
    raise typer.Exit(0 if held else 1)


@app.command("pretrain")
def pretrain_command(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the Hugging Face folder goes.")
    ],
    task: Annotated[
        str,
        typer.Option(
            "--task",
            metavar="NAME",
            help="What it learns: a task as in site.task, or several as A+B; one of your own from its solutions.",
        ),
    ] = "digit_sum",
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", min=0, help="The same seed gives the same weights."),
    ] = 0,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            help="Optimiser steps; the shipped policy took the default.",
        ),
    ] = None,
    width: Annotated[
        int, typer.Option("--width", metavar="W", min=16, help="Hidden size of the policy.")
    ] = 32,
    layers: Annotated[
        int, typer.Option("--layers", metavar="L", min=1, help="Transformer layers.")
    ] = 2,
    positions: Annotated[
        int,
        typer.Option(
            "--positions", metavar="N", min=16, help="Most tokens of a prompt and its completion."
        ),
    ] = 128,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Import the Python function that --task names.")
    ] = False,
) -> None:
    """Make a start policy by supervised learning; without options, that of the tiny world (three minutes)."""
    from tui.commands.pretraining import pretrain_with_progress

    with errors():
        pretrain_with_progress(
            out,
            seed,
            steps,
            task=task,
            width=width,
            layers=layers,
            positions=positions,
            allow_code=allow_code,
        )


def run(
    name: str, overrides: list[str] | None = None, *, as_json: bool = False, **options: Any
) -> None:
    """Plan, run and report; the exit status says how it ended."""
    from tui.commands.running import run_plans

    with errors():
        results = run_plans(name, overrides or [], as_json=as_json, **options)
    _exit_as(results)


def _exit_as(results: "list[RunResult]") -> None:
    if any(result.status == "stopped" for result in results):
        raise typer.Exit(INTERRUPTED)


def main() -> None:
    """The console script: a usage error too is one sentence on stderr and exit status 2."""
    if hasattr(
        signal, "SIGPIPE"
    ):  # `scalerl ... | head` ends like any other tool; a run can be resumed
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # a terminal without Unicode gets question marks, no traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        print("scalerl: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        # of the parser's own errors, whose classes are private
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        print(f"scalerl: {said()} (see scalerl --help)", file=sys.stderr)
        sys.exit(2)
    sys.exit(status or 0)
