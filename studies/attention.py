"""Block-sparse attention over the masks of real text, beside what a calibrated profile says that it takes.

python studies/attention.py PROFILE_FOLDER [--model byte-large] [--tokens 9216] [--repeats 8]

Calibration draws masks at random, alike in all heads; here a model's own attention to a text (Python's standard
library) says which blocks hold 98 % of the mass. Attention is timed inside the session's ops; the profile must be of
this machine, with this model and as many --threads.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement, typical
from kvferry.calibration.perceptron import Points, roofline_of, table_of
from kvferry.calibration.settings import Settings
from kvferry.calibration.sparsity import TimedAttention
from kvferry.machine.ops import Advance, KvRef, Op, Project
from kvferry.model.attention import BlockSparse
from kvferry.model.block_masks import BlockMasks
from kvferry.model.prompts import Prompts
from kvferry.model.recording import record
from kvferry.scenarios.loader import load_device
from kvferry.sim.costs.cost_model import main_costs
from kvferry.sim.costs.fitted import PREDICTOR
from kvferry.sim.costs.predictor import Predictor
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks


def recorded(rig: Rig, tokens: int) -> BlockMasks:
    """Of the beginning of a text."""
    prompts = Prompts(Path(rig.model.config.name_or_path), rig.spec.vocabulary, None, 0)
    context, _ = prompts.tokens(0, tokens, 1)
    return record(rig.model, context).masks


def timed(rig: Rig, masks: BlockMasks, tokens: int, repeats: int) -> tuple[Points, np.ndarray]:
    """Every layer of every chunk; and what all of its Advance takes. What comes before a chunk is noise."""
    sparse = BlockSparse(masks)
    attention = TimedAttention(sparse, rig.on_cuda)
    chunks, layers = tokens // CHUNK_TOKENS, rig.spec.layers
    calls = np.empty((repeats, chunks, layers))
    advances = np.empty_like(calls)
    with rig.running(tokens, attention=attention) as running:
        for n in range(-1, repeats):  # the first compiles and does not count
            for t in range(chunks):
                ops: list[Op] = []
                for l in range(layers):
                    kv = KvRef(0, t, l, None, 0.0)
                    ops += [Project(CHUNK_TOKENS, kv), Advance(CHUNK_TOKENS, 0, t * CHUNK_TOKENS, kv)]
                request, _ = running.loaded(t)
                advance_s = running.seconds(ops, request)[1::2]
                attention_s = attention.taken()
                if n >= 0:
                    calls[n, t], advances[n, t] = attention_s, advance_s
    if not sparse.compiled:
        print("FlexAttention did not compile here: masks were written out for dense attention")
    places = [(t, l) for t in range(chunks) for l in range(layers)]
    blocks = np.array([float(masks.active(t, l).sum()) for t, l in places])
    context = np.array([float(t * CHUNK_TOKENS) for t, _ in places])
    whole = np.full(len(places), float(CHUNK_TOKENS))
    density = blocks / rig.spec.kv_heads / causal_blocks(CHUNK_TOKENS, context.astype(int))
    seconds = np.array([typical(calls[:, t, l].tolist()) for t, l in places])
    advance_s = np.array([typical(advances[:, t, l].tolist()) for t, l in places])
    return Points(context, whole, density, blocks, seconds, calls.size), advance_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, help="a folder that kvferry calibrate made")
    parser.add_argument("--model", default="byte-large")
    parser.add_argument("--tokens", type=int, default=9 * CHUNK_TOKENS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=8)
    asked = parser.parse_args()
    rig = Rig(Settings(model=asked.model, threads=asked.threads))
    spec, tokens = rig.spec, asked.tokens // CHUNK_TOKENS * CHUNK_TOKENS
    points, advance_s = timed(rig, recorded(rig, tokens), tokens, asked.repeats)

    measured = json.loads((asked.profile / "calibration.json").read_text())["measurements"]
    fitted_to = Points.of([Measurement.from_json(m) for m in measured], "sparse_attention")
    predictor = Predictor.load(asked.profile / "measured" / spec.name / PREDICTOR)
    device = load_device(str(asked.profile / "profile.yaml"))
    main_processor = device.processors[device.main]
    rates = main_processor.flop_per_s, main_processor.bytes_per_s
    predicted = {
        "perceptron": predictor.seconds(
            points.tokens, points.blocks, kv_heads=spec.kv_heads, context_tokens=points.context
        ),
        "table of the same points": table_of(fitted_to, spec)(points),
        "roofline, one efficiency": roofline_of(fitted_to, spec, *rates)(points),
    }
    shares = f"{points.density.min():.0%} to {points.density.max():.0%}"
    print(f"{points.seconds.size} layers of token chunks, {shares} of their blocks, {points.calls} calls")
    print(f"attention takes {1e3 * points.seconds.min():.2f} to {1e3 * points.seconds.max():.1f} ms")
    print("| attention predicted by | mean error | worst | all together |")
    print("|---|---|---|---|")
    for name, seconds in predicted.items():
        _row(name, seconds, points.seconds)
    processors = {device.main: main_processor.model_copy(update={"measured": str(asked.profile / "measured")})}
    costs = main_costs("predictor", device.model_copy(update={"processors": processors}), spec)
    ops = Advance(points.tokens, points.blocks, points.context)
    _row("Advance, costs: predictor", costs.durations_s(ops), advance_s)


def _row(name: str, predicted: np.ndarray, seconds: np.ndarray) -> None:
    off = np.abs(predicted / seconds - 1)
    print(f"| {name} | {off.mean():.1%} | {off.max():.1%} | {predicted.sum() / seconds.sum() - 1:+.1%} |")


if __name__ == "__main__":
    main()
