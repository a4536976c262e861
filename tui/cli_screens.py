"""The commands that open the app: bare `scalerl`, `watch`, `serve`."""

import os
import sys
from typing import Annotated

import typer

from tui.console import errors, fail

Theme = Annotated[
    str | None,
    typer.Option(
        "--theme",
        metavar="NAME",
        help="scalerl-dark, scalerl-light, scalerl-contrast, ansi-dark, ...",
    ),
]


def open_app(source: str | None = None, *, theme: str | None = None, demo: bool = False) -> None:
    """Open the app on its home screen, on a source, or on the bundled recording."""
    if source is not None:
        with errors():
            _check_source(source)
    if not has_terminal():
        fail("the screens need a terminal: `scalerl run` and `scalerl fit` work without one")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # numpy too: cores are for the run
    with errors():
        from tui.app import ScalerlApp
        from tui.recordings import DEMO

        if theme is not None:
            _check_theme(theme)
        app = ScalerlApp(str(DEMO) if demo else source, theme=theme)
        app.settle()
        app.run()
        if app.fault is not None:
            fail(f"{app.fault}. Runs that it had started stop by themselves, saved", status=1)
        for folder in app.left:
            print(f"still running: {folder} (scalerl shows it)")


def has_terminal() -> bool:
    """Whether a person sits at both ends, or a browser behind `scalerl serve`. Textual draws on stderr."""
    if "TEXTUAL_DRIVER" in os.environ:
        return True
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def _check_theme(theme: str) -> None:
    from textual.theme import BUILTIN_THEMES

    from tui.show.themes import THEMES

    known = sorted({*THEMES, *BUILTIN_THEMES})
    if theme not in known:
        fail(f"--theme {theme!r}: must be one of {', '.join(known)}")


def _check_source(source: str) -> None:
    """Refuse what cannot be a source before the screen opens."""
    from tui.watch.catalog import refuse_root
    from tui.watch.feeds import opener

    opened = opener(source)
    if "://" not in source:
        opened().close()
        refuse_root(source)


def watch_command(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run folder, a log, a recording (.jsonl.gz), ssh://HOST/PATH or http://...",
        ),
    ],
    theme: Theme = None,
) -> None:
    """Watch a run: curve, truncation, off-policy lag, who is busy. Read-only; it need not have begun."""
    open_app(run, theme=theme)


def serve_command(
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Address to listen on; others than this machine's own are exposed.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65535)] = 8765,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the bundled recording.")] = False,
    run: Annotated[
        str | None,
        typer.Option("--watch", metavar="RUN", help="Serve one run instead of the home screen."),
    ] = None,
) -> None:
    """Serve the screens to a browser (extra `serve`). There is no password: whoever reaches the port is you."""
    with errors():
        try:
            from tui.commands.serving import serve
        except ImportError:
            fail("`scalerl serve` needs textual-serve: pip install '.[serve]' in this checkout")
        if run is not None:
            _check_source(run)
        serve(["--demo"] if demo else ["watch", run] if run is not None else [], host, port)
