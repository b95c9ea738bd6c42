"""Tests here import their helpers, which lie beside them, by bare name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
