#!/usr/bin/env bash
# Checks on one NVIDIA GPU, with torch and light packages alone; see README.md beside this. PYTHON=... chooses another.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ ! -x .venv/bin/python ] || PYTHON=.venv/bin/python
fi
PYTHONPATH=$PWD exec "$PYTHON" tests/gpu/smoke.py "$@"
