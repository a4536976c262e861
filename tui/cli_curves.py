"""The two commands about curves, `fit` and `compare`: their options, and nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from tui.console import Json, errors, fail

Xcolumn = Annotated[
    str | None, typer.Option("--x", metavar="COL", help="CSV column with the compute.")
]
Ycolumn = Annotated[
    str | None, typer.Option("--y", metavar="COL", help="CSV column with the pass rate.")
]
Unit = Annotated[
    str | None, typer.Option("--unit", help="Unit of the compute, if its column does not say.")
]
R0 = Annotated[
    float | None,
    typer.Option(
        "--r0", metavar="R0", help="Pass rate before RL; by default that at C = 0, or fitted."
    ),
]
Window = Annotated[
    str | None, typer.Option("--window", metavar="LO:HI", help="Only points with LO <= C <= HI.")
]
Grid = Annotated[
    str | None,
    typer.Option(
        "--grid",
        metavar="relative|paper|paper-drawn",
        help="What is searched; the paper's need an R0.",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="COL=VALUE", help="Only these rows of a CSV; repeatable."),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Save a figure: .svg, .png or .html."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the random draws.")]


def fit_command(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE_OR_RUN",
            help="A run folder, a folder of seeds, an events.jsonl, each also as RUN#SET (#ood, #validation/TASK);"
            " a CSV; or paper:[FIGURE/]SERIES.",
        ),
    ] = None,
    x: Xcolumn = None,
    y: Ycolumn = None,
    select: Select = None,
    unit: Unit = None,
    r0: R0 = None,
    window: Window = None,
    grid: Grid = None,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="C", help="Predict the pass rate at C, e.g. 10k; repeatable."),
    ] = None,
    drift: Annotated[
        list[str] | None,
        typer.Option("--drift", metavar="C", help="Refit on the points up to C; repeatable."),
    ] = None,
    extend: Annotated[
        str | None,
        typer.Option("--extend", metavar="C", help="What going on to C would buy."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", metavar="P", help="Price per unit of compute, for --extend."),
    ] = None,
    plot: Plot = None,
    register: Annotated[
        bool,
        typer.Option(
            "--register",
            help="Put the forecasts at --at on record, to be scored later; by default at twice the last C.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with status 1 unless the verdict is ok.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Score the forecasts on record; needs no source.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the paper's curves.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit the sigmoid R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B), and say what it is worth."""
    from tui.commands.fitting import FitRequest, amounts, fit, list_published
    from tui.commands.recording import show_record

    with errors():
        if source is not None and (list_ or record):
            fail(f"--list and --record need no source: leave {source} out")
        if list_:
            list_published(as_json=as_json)
        elif record:
            show_record(as_json=as_json)
        elif source is None:
            fail("say what to fit: a run, a CSV, or a curve from `scalerl fit --list`")
        else:
            believed = fit(
                FitRequest(
                    source=source,
                    x=x,
                    y=y,
                    select=tuple(select or ()),
                    unit=unit,
                    R0=r0,
                    window=window,
                    grid=grid,
                    at=amounts("--at", at),
                    drift=amounts("--drift", drift),
                    extend=None if extend is None else amounts("--extend", [extend])[0],
                    price=price,
                    plot=plot,
                    register=register,
                    seed=seed,
                ),
                as_json=as_json,
            )
            if check and not believed:
                raise typer.Exit(1)


def compare_command(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="RUN_OR_CURVE ...", help="Two or more, each as in `scalerl fit`."),
    ],
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", metavar="C", help="Who wins at C, e.g. 10k; repeatable."),
    ] = None,
    detect: Annotated[
        float | None,
        typer.Option("--detect", metavar="D", help="Seeds and compute that show a difference D."),
    ] = None,
    x: Xcolumn = None,
    y: Ycolumn = None,
    select: Select = None,
    unit: Unit = None,
    r0: R0 = None,
    window: Window = None,
    grid: Grid = None,
    plot: Plot = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare curves: ceilings, speed, who wins at which budget, and what differs in the recipes."""
    from tui.commands.comparing import compare
    from tui.commands.fitting import amounts

    with errors():
        compare(
            sources,
            budgets=amounts("--budget", budget),
            detect=detect,
            x=x,
            y=y,
            select=select or [],
            unit=unit,
            R0=r0,
            window=window,
            grid=grid,
            plot=plot,
            seed=seed,
            as_json=as_json,
        )
