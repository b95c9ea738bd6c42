"""Where the packages lie. What else there is to say of the project is in setup.cfg."""

import runpy
from pathlib import Path

from setuptools import setup

PACKAGES = runpy.run_path(str(Path(__file__).parent / "rooms.py"))["packages"]()

setup(packages=list(PACKAGES), package_dir=PACKAGES)
