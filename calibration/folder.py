"""The folder that a calibration writes: a profile, its tables, and every measurement with its circumstances."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from kvferry.calibration.fit import RooflineFit
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.perceptron import PerceptronFit, files_of
from kvferry.calibration.profile_draft import Draft
from kvferry.calibration.tables import tables
from kvferry.sim.costs.fitted import DENSE, PREDICTOR
from kvferry.specs.model import ModelSpec
from kvferry.system.whole_file import write_file

PROFILE = "profile.yaml"


def write(
    folder: Path,
    draft: Draft,
    fit: RooflineFit | None,
    model: ModelSpec | None,
    measured: Sequence[Measurement],
    *,
    heading: str,
    circumstances: Mapping[str, Any],
    perceptron: PerceptronFit | None = None,
) -> Path:
    """profile.yaml, measured/MODEL/*, model.yaml, storage.csv and calibration.json; returns the first.

    Raises InputError when they cannot be written.
    """
    now = datetime.now(UTC).replace(microsecond=0).isoformat()
    found = tables(measured) if model else {}
    found |= files_of(perceptron) if perceptron else {}
    if not found:
        main = f"processors.{draft.profile['main']}"
        draft.profile["processors"][draft.profile["main"]].pop("measured", None)
        draft.sources.pop(f"{main}.measured", None)
    content = draft.yaml(f"{heading}, on {now[:10]}")
    record = {
        "date": now,
        **circumstances,
        "fit": None if fit is None else fit.to_json(),
        "perceptron": None if perceptron is None else perceptron.to_json(),
        "measurements": [{**m.to_json(), "typical": m.typical, "spread": m.spread} for m in measured],
    }
    if model:
        for file in (PREDICTOR, DENSE):  # not another calibration's
            if file not in found:
                (folder / "measured" / model.name / file).unlink(missing_ok=True)
        for file, data in found.items():
            write_file(folder / "measured" / model.name / file, data)
        description = yaml.safe_dump(model.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_file(folder / "model.yaml", description.encode())
    reads = [m for m in measured if m.what in ("random_read", "random_read_fio")]
    if reads:
        write_file(folder / "storage.csv", storage_csv(reads))
    write_file(folder / "calibration.json", (json.dumps(record, indent=1) + "\n").encode())
    # Last: where there is a profile, the other files are complete.
    write_file(folder / PROFILE, content)
    return folder / PROFILE


def storage_csv(reads: Sequence[Measurement]) -> bytes:
    """A row for each block size, depth and way of reading."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("block_bytes", "depth", "bytes_per_s", "spread", "by"))
    for m in reads:
        by = "fio" if m.what.endswith("fio") else "kvferry"
        rows.writerow((int(m.at["block_bytes"]), int(m.at["depth"]), f"{m.typical:.4g}", f"{m.spread:.3f}", by))
    return text.getvalue().encode()
