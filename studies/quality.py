"""What approximations cost in quality, measured on bundled models: python studies/quality.py STUDY [--output FOLDER]

STUDY is one of the table below; each says with --help what its columns are. With --output, the figures go into
FOLDER/STUDY_quality.json.
"""

import argparse
import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import quality_choices
import quality_clusters
import quality_refined
import quality_systems
import torch

from kvferry.model.models import load_model
from kvferry.model.prompts import Prompts


class Study(NamedTuple):
    """A module with ``measure(asked, model, prompts)``, and what it takes: by flag, what argparse makes of it."""

    module: Any
    arguments: Mapping[str, Mapping[str, Any]]


def number(default: float, meaning: str = "") -> dict[str, Any]:
    return {"type": type(default), "default": default, "help": meaning}


MODEL = {
    "--model": {"default": "byte-large", "help": "as live.weights; reads bytes"},
    "--text": {"type": Path, "help": "what is read; else the modules of this Python's library, other ones elsewhere"},
}
STUDIES = {
    "systems": Study(
        quality_systems,
        {
            **MODEL,
            "--dtype": {"default": "float32"},
            "--context": number(2048),
            "--selected": {"type": int, "nargs": "+", "default": [128], "help": "tokens"},
            "--share": {"type": float, "help": "of the full cache, for choosing; else what it takes"},
            "--texts": number(2),
            "--said": number(128, "tokens after each text"),
            "--needles": number(1, "contexts with needles"),
            "--ways": {"nargs": "+", "help": "only those whose name begins with one of these"},
        },
    ),
    "clusters": Study(
        quality_clusters,
        {
            **MODEL,
            "--context": number(512, "tokens of the prompt"),
            "--decoded": number(4161),
            "--texts": number(3),
            "--every": number(73, "decoded tokens between two steps that are measured"),
            "--share": number(0.1, "of all tokens, read in every step"),
            "--block": number(16, "tokens of a cluster of the prompt, in the mean"),
            "--threshold": {"type": float, "help": "of adaptive; else the system's own"},
            "--sweep": {"action": "store_true"},
            "--ways": {"nargs": "+", "help": "only these"},
        },
    ),
    "choices": Study(
        quality_choices,
        {
            **MODEL,
            "--context": number(2048),
            "--steps": number(48, "per text, 11 tokens apart"),
            "--texts": number(3),
            "--needles": number(2, "texts with needles"),
            "--budgets": {"type": int, "nargs": "+", "default": [64, 128, 256, 512]},
            "--head": {"action": "append", "default": [], "metavar": "NAME=FOLDER", "help": "a further head"},
        },
    ),
    "refined": Study(
        quality_refined,
        {
            **MODEL,
            "--device": {"default": "byte-small", "help": "a model that reads bytes; --model is the cloud's"},
            "--context": number(2048, "bytes of text"),
            "--seeds": number(3, "texts of either probe, eight questions about each"),
            "--picture": {"type": Path, "help": "file for the picture"},
        },
    ),
}


def settings_of(asked: argparse.Namespace, prompts: Prompts) -> dict[str, Any]:
    """Returns what the figures hang on: other software or another text, other figures."""
    kept = {key: value for key, value in vars(asked).items() if key not in ("output", "picture", "study")}
    return {
        **kept,
        "text": "this Python's library" if asked.text is None else asked.text.name,
        "text_sha256": prompts.sha256,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = parser.add_subparsers(required=True, dest="study", metavar="STUDY")
    for name, study in STUDIES.items():
        about = study.module.__doc__
        one = names.add_parser(
            name,
            help=about.splitlines()[0],
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for flag, of in study.arguments.items():
            one.add_argument(flag, **of)
        one.add_argument("--output", type=Path, help="folder for the figures")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = load_model(asked.model, getattr(asked, "dtype", "float32"))
    prompts = Prompts(Path(model.config.name_or_path), model.config.vocab_size, asked.text, 0)
    found = STUDIES[asked.study].module.measure(asked, model, prompts)
    if asked.output is not None:
        asked.output.mkdir(parents=True, exist_ok=True)
        path = asked.output / f"{asked.study}_quality.json"
        path.write_text(json.dumps({"settings": settings_of(asked, prompts), **found}, indent=1) + "\n")
        print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
