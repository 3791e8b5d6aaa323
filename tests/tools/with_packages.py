"""Runs a script with a Python that has the named packages, or says why not and exits with 77.

usage: with_packages.py PACKAGE[,PACKAGE...] SCRIPT [ARGUMENT...]

Looks at $SWITCHYARD_ORACLE_PYTHON, then at this interpreter.
"""
import os
import subprocess
import sys


def python_with(packages):
    """The first Python that has the packages ("a, b"); None: there is none."""
    for python in filter(None, (os.environ.get("SWITCHYARD_ORACLE_PYTHON"), sys.executable)):
        if subprocess.run([python, "-c", f"import {packages}"], capture_output=True).returncode == 0:
            return python
    return None


if __name__ == "__main__":
    packages, command = sys.argv[1], sys.argv[2:]
    python = python_with(packages)
    if python:
        sys.exit(subprocess.run([python, *command]).returncode)
    print(f"skipped: no Python with {packages} (set SWITCHYARD_ORACLE_PYTHON to one)")
    sys.exit(77)
