"""`scalerl run --list`: what can be run by name, and the sites to run it on."""

import json

from rich.console import Console
from rich.table import Table

from scenarios.scenario import SITES, names


def sites() -> dict[str, str]:
    """Everything that `--on` takes by name, each with the first line of its file."""
    return {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for path in sorted(SITES.glob("*.toml"))
    }


def list_names(as_json: bool) -> None:
    """Print names with a line about each; in the document sites have a key of their own."""
    if as_json:
        print(json.dumps({**names(), "sites": sites()}, indent=2))
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, about in names().items():
        table.add_row(name, about)
    table.add_row()
    for name, about in sites().items():
        table.add_row(f"--on {name}", about)
    Console().print(table)
