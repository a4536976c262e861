"""The screens in a browser: textual-serve, ended at once by Ctrl-C even while a page is open."""

import asyncio

from aiohttp import web
from textual_serve.server import Server


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


def serve(command: str, host: str, port: int) -> None:
    """Serve a command until Ctrl-C; each page of a browser gets a process of its own.

    Raises:
        OSError: the port cannot be listened on.
    """
    OwnServer(command, host, port).serve()
