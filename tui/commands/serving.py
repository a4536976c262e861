"""The screens in a browser: textual-serve, ended at once by Ctrl-C even while a page is open."""

import asyncio
import shlex
import sys
from collections.abc import Sequence

from aiohttp import web
from textual_serve.server import Server

from scalerl.errors import InputError


class OwnServer(Server):
    """Remembers its open pages, for the server waits for each of them otherwise."""

    def __init__(self, command: str, host: str, port: int) -> None:
        super().__init__(command, host=host, port=port, title="scalerl")
        self._pages: set[asyncio.Task[object]] = set()

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        page = asyncio.current_task()
        assert page is not None  # a request is always handled in a task
        self._pages.add(page)
        try:
            return await super().handle_websocket(request)
        finally:
            self._pages.discard(page)

    async def on_shutdown(self, app: web.Application) -> None:
        for page in list(self._pages):
            page.cancel()
        await super().on_shutdown(app)


LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(arguments: Sequence[str], host: str, port: int) -> None:
    """Serve `scalerl` with these arguments until Ctrl-C; each page of a browser gets a process of its own.

    Raises:
        InputError: the port cannot be listened on.
    """
    print(f"http://{host}:{port}  (Ctrl-C ends it)")
    # whatever it opens with: esc leads to the home screen
    print(
        "whoever opens it can start, stop and delete runs on this machine as you, without a password",
        flush=True,
    )
    if host not in LOCAL:
        print(f"warning: {host} can be reached from other machines", file=sys.stderr, flush=True)
    # -P: a `tui` folder in the current one must not be taken for ours
    command = [sys.executable, "-P", "-c", "from tui.cli import main; main()", *arguments]
    try:
        OwnServer(shlex.join(command), host, port).serve()
    except OSError as error:
        said = f"cannot listen on {host}:{port}: {error.strerror}"
        raise InputError(f"{said}: choose another --port") from None
