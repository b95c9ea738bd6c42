"""Test folders import their neighbours by bare name."""

import sys
from pathlib import Path

for folder in ("contract", "faults"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
