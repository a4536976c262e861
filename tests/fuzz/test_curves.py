"""CSVs, and what is asked of them on the command line: a curve, or one sentence of ours."""

import os
from pathlib import Path

import pytest
from command import refused, scalerl
from hostile import MANY, NASTY, bears, oddities, spoiled, texts, unprintable
from hypothesis import given

from scalerl.curves.sources import read_source
from scalerl.errors import InputError
from tui.commands.fitting import amounts, parse_window


def _csv(head: str, tail: str, n: int = 14) -> bytes:
    rows = [f"{10 * i},{0.2 + 0.6 * i / (i + 4):.4f},{tail}" for i in range(n)]
    return "\n".join([head, *rows, ""]).encode()


WEIGHED = _csv("gpu_hours,pass_rate,n,k", "200,16")
NAMED = _csv('step,R,se,"seed"', '0.01,"0"')


@pytest.fixture(scope="module", autouse=True)
def _here(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.chdir(tmp_path_factory.mktemp("curves"))


@MANY
@given(data=spoiled([WEIGHED, NAMED]))
def test_any_csv(data: bytes) -> None:
    Path("d.csv").write_bytes(data)
    bears(lambda: read_source("d.csv"))


@MANY
@given(text=texts("d.csv", "paper:Fig2/ScaleRL", "run/events.jsonl", "10:50k"))
def test_any_argument(text: str) -> None:
    bears(lambda: read_source(text))
    bears(lambda: read_source("d.csv", select=[text], x=text, y=text, unit=text))
    bears(lambda: parse_window(text))
    bears(lambda: amounts("--at", [text]))


def test_odd_things_in_place_of_a_csv(tmp_path: Path) -> None:
    for what, path in oddities(tmp_path, "odd.csv", WEIGHED).items():
        if what in ("bom", "crlf"):
            assert len(read_source(str(path)).curves[0].C_N) == 13
        else:
            with pytest.raises(InputError, match="odd"):
                read_source(str(path))
    assert "is not a regular file" in refused("fit", str(tmp_path / "pipe/odd.csv"))


@pytest.mark.parametrize(
    "cell",
    ["1e400", "-1e400", "9" * 5000, "nan", "0x10", "1_0", "", "\u202e1", '"1\n2"', "1e-400", "-0", "١٢"],
)  # fmt: skip
def test_numbers_that_are_none(cell: str) -> None:
    for place in range(4):
        row = ["135", "0.7", "200", "16"]
        row[place] = cell
        Path("d.csv").write_bytes(WEIGHED + ",".join(row).encode() + b"\n")
        bears(lambda: read_source("d.csv"))
        bears(lambda: scalerl("fit", "d.csv", "--json") and None)


def test_what_is_printed_cannot_move_the_cursor() -> None:
    """A column's name becomes the unit, a file's the curve's name, a cell part of a refusal."""
    name = NASTY.replace("/", "").replace(",", "")
    rows = WEIGHED.replace(b"gpu_hours", name.encode().replace(b"\r", b""))
    column = name.replace("\r", "").strip()
    for path in (Path("a.csv"), Path(f"{name}.csv")):
        path.write_bytes(rows)
    fitted = scalerl("fit", "a.csv", "--x", column)
    compared = scalerl("compare", "a.csv", f"{name}.csv", "--x", column)
    refusal = scalerl("fit", "a.csv", "--select", f"k={NASTY}")
    for result in (fitted, compared, refusal):
        assert "[bold]loud[" in result.output
        assert unprintable(result.output) == []
    assert (fitted.exit_code, compared.exit_code, refusal.exit_code) == (0, 0, 2)
    assert "[bold]loud[" in compared.stdout and ":smile:" in compared.stdout
