"""The command line, called in this process: what it printed, and how it refused."""

from typer.testing import CliRunner, Result

from tui.cli import app


def scalerl(*arguments: str) -> Result:
    """Run one command."""
    return CliRunner().invoke(app, list(arguments))


def printed(*arguments: str) -> str:
    """The stdout of a command that succeeds and says nothing on stderr."""
    result = scalerl(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def refused(*arguments: str, status: int = 2) -> str:
    """The one sentence on stderr of a command that ends with `status`, and nothing on stdout."""
    result = scalerl(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    [sentence] = result.stderr.splitlines()
    return sentence
