r"""Train a bundled model from Python's own sources and documentation, in CPU minutes or on a GPU.

    python training/train.py byte-large --documentation html/_sources --output out/byte-large --minutes 60
    python training/train.py byte-long --documentation html/_sources --output out/byte-long --minutes 8 \
        --start model/bundled/byte-large --device cuda --batch-tokens 131072 --workers 12

The documentation is that of Debian's package python3.11-doc (`apt-get download python3.11-doc`, unpacked with
`dpkg -x`, folder usr/share/doc/python3.11/html/_sources). A run that stops goes on from its last checkpoint. The
learning rate follows the minutes spent (of processor time on a CPU, by the clock on a GPU), not steps, so that a run
takes the given time on any machine.
"""

import argparse
import itertools
import json
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from byte_models import CONFIGS, CONTEXT_TOKENS, loss, new_model
from corpus import Corpus, corpus
from joblib import Parallel, delayed
from safetensors.torch import load_file, save_file
from tasks import copies, needles, recall, repeats

BATCH_TOKENS = 4096
CHECKPOINT_S = 120.0


@dataclass(frozen=True)
class Stage:
    """A stage, up to a share of the minutes: the probabilities of each length and task; the rest is plain text."""

    until: float
    lengths: dict[int, float]
    tasks: dict[str, float]


MIXED = {"repeats": 0.12, "recall": 0.2, "needles": 0.28}
# Short sequences and many tasks first: copying is found there soonest. Real lengths up to 8K come last.
STAGES = (
    Stage(0.2, {256: 0.6, 512: 0.4}, {"repeats": 0.5, "recall": 0.25, "needles": 0.1}),
    Stage(0.45, {256: 0.1, 512: 0.35, 1024: 0.35, 2048: 0.2}, MIXED),
    Stage(1.0, {1024: 0.15, 2048: 0.2, 4096: 0.3, 8192: 0.35}, MIXED),
)
# byte-long goes on from byte-large, mostly at the length of 8Ki and of what is said behind it.
LONG_TOKENS = CONTEXT_TOKENS + 1024
LENGTHENING = (
    Stage(
        1.0,
        {1024: 0.05, 2048: 0.1, 4096: 0.15, LONG_TOKENS: 0.7},
        {"repeats": 0.08, "recall": 0.12, "needles": 0.25, "copies": 0.2},
    ),
)
COURSES = {"byte-large": STAGES, "byte-long": LENGTHENING, "byte-small": STAGES}
LONG_RATE = 0.25  # of the peak learning rate, at the start of the last stage, which has real lengths up to 8K


class Batches:
    """Sequences drawn again each time: text and tasks, some with positions that skip ahead (PoSE)."""

    def __init__(self, text: np.ndarray, seed: int | list[int], batch_tokens: int = BATCH_TOKENS) -> None:
        self.text, self.random, self.batch_tokens = text, np.random.default_rng(seed), batch_tokens

    def draw(self, length: int, tasks: dict[str, float]) -> tuple[torch.Tensor, ...]:
        """ids, targets, weights and positions, each [batch, length]."""
        rows = [self._sequence(length + 1, tasks) for _ in range(max(1, self.batch_tokens // length))]
        ids = torch.from_numpy(np.stack([ids for ids, _ in rows]))
        weights = torch.from_numpy(np.stack([weights for _, weights in rows]))[:, 1:].contiguous()
        positions = np.stack([self._positions(length) for _ in rows])
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weights, torch.from_numpy(positions)

    def _sequence(self, size: int, tasks: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
        u = self.random.random()
        for task, share in tasks.items():
            u -= share
            if u < 0:
                return self._task(task, size)
        return self._excerpt(size).astype(np.int64), np.ones(size, np.float32)

    def _task(self, task: str, size: int) -> tuple[np.ndarray, np.ndarray]:
        if task == "repeats":
            return repeats(self.random, size)
        if task == "recall":
            return recall(self.random, size)
        in_text = {"needles": needles, "copies": copies}[task]
        return in_text(self.random, size, lambda length: self._excerpt(length).tobytes())

    def _excerpt(self, length: int) -> np.ndarray:
        begin = int(self.random.integers(len(self.text) - length))
        return self.text[begin : begin + length]

    def _positions(self, length: int) -> np.ndarray:
        positions = np.arange(length)
        if length >= 512 and self.random.random() < 0.5:
            cuts = np.sort(self.random.integers(1, length, size=int(self.random.integers(1, 4))))
            room = int(self.random.integers(0, max(CONTEXT_TOKENS, length) - length + 1))
            skips = np.diff(np.sort(self.random.integers(0, room + 1, size=len(cuts))), prepend=0)
            for cut, skip in zip(cuts, skips):
                positions[cut:] += skip
        return positions


class Run:
    """A training run in a folder: weights, optimiser and progress."""

    def __init__(self, name: str, folder: Path, peak: float, seed: int, start: Path | None, device: str) -> None:
        self.folder, self.peak, self.device = folder, peak, device
        self.model = new_model(name, seed)
        if start is not None:
            self.model.load_state_dict(load_file(start / "model.safetensors"), strict=False)  # the head is tied
        self.model.to(device)
        matrices = [w for w in self.model.model.layers.parameters() if w.ndim == 2]
        others = [w for w in self.model.parameters() if not any(w is m for m in matrices)]
        # Muon's steps are scaled to the size of AdamW's, so that both take the same rate.
        muon = torch.optim.Muon(matrices, lr=peak, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(others, lr=peak, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.optimisers: list[torch.optim.Optimizer] = [muon, adamw]
        self.steps, self.seconds = 0, 0.0
        if (folder / "progress.json").exists():
            self._resume()

    def step(self, batch: tuple[torch.Tensor, ...], rate: float) -> float:
        value = loss(self.model, *(tensor.to(self.device) for tensor in batch))
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        return float(value.detach())

    def save(self) -> None:
        """Write the weights in bfloat16 for use, and all to resume from in float32; each file is written atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        weights = {name: w.detach() for name, w in self.model.named_parameters()}
        self.model.config.save_pretrained(self.folder)
        halves = {name: w.to("cpu", torch.bfloat16).contiguous() for name, w in weights.items()}
        _write(halves, self.folder / "model.safetensors")
        names = {id(w): name for name, w in self.model.named_parameters()}
        state = {f"weight {name}": w for name, w in weights.items()}
        for optimiser in self.optimisers:
            for weight, values in optimiser.state.items():
                for key, value in values.items():
                    state[f"{key} {names[id(weight)]}"] = torch.as_tensor(value).detach()
        _write(state, self.folder / "training.safetensors")
        progress = self.folder / "progress.part"
        progress.write_text(json.dumps({"steps": self.steps, "seconds": self.seconds}))
        progress.replace(self.folder / "progress.json")

    def _resume(self) -> None:
        progress = json.loads((self.folder / "progress.json").read_text())
        self.steps, self.seconds = progress["steps"], progress["seconds"]
        kept = load_file(self.folder / "training.safetensors")
        named = dict(self.model.named_parameters())
        owners = {id(w): o for o in self.optimisers for group in o.param_groups for w in group["params"]}
        with torch.no_grad():
            for key, value in kept.items():
                kind, name = key.split(" ")
                weight = named[name]
                if kind == "weight":
                    weight.copy_(value)
                else:
                    owners[id(weight)].state[weight][kind] = value


def rate(peak: float, done: float, steps: int, stages: tuple[Stage, ...] = STAGES) -> float:
    """Warm-up, a cosine to the start of the last stage, and from there linearly to zero."""
    last = stages[-2].until if len(stages) > 1 else 0.0
    rising = min(1.0, (steps + 1) / 100)
    if done >= last:
        return peak * rising * LONG_RATE * max(0.01, (1 - done) / (1 - last))
    falling = LONG_RATE + (1 - LONG_RATE) * 0.5 * (1 + float(np.cos(np.pi * done / last)))
    return peak * rising * falling


def drawn(text: np.ndarray, stage: Stage, seed: list[int], batch_tokens: int) -> tuple[torch.Tensor, ...]:
    """A batch of one of the stage's lengths; the same seed draws the same, in any process."""
    batches = Batches(text, seed, batch_tokens)
    length = int(batches.random.choice(list(stage.lengths), p=list(stage.lengths.values())))
    return batches.draw(length, stage.tasks)


def train(run: Run, text: Corpus, given: Any) -> None:
    stages = COURSES[given.name]
    clock = time.process_time if run.device == "cpu" else time.monotonic

    def done() -> float:
        return run.seconds / (60 * given.minutes)

    def jobs() -> Iterator[Any]:
        for number in itertools.count(run.steps):
            stage = next((stage for stage in stages if done() < stage.until), stages[-1])
            yield delayed(drawn)(text.learnt, stage, [given.seed, number], given.batch_tokens)

    batches = Parallel(given.workers, return_as="generator", pre_dispatch="3*n_jobs")(jobs())
    began_s = saved_s = clock()
    before_s = run.seconds
    seen: dict[int, list[float]] = {}
    while done() < 1:
        batch = next(batches)
        value = run.step(batch, rate(run.peak, done(), run.steps, stages))
        seen.setdefault(batch[0].shape[1], []).append(value / np.log(2))
        run.seconds = before_s + clock() - began_s
        if run.steps % 50 == 0:
            means = "  ".join(f"{length}: {np.mean(values):.3f}" for length, values in sorted(seen.items()))
            print(f"step {run.steps}  {run.seconds / 60:.1f} min  bits/byte over all targets  {means}", flush=True)
            seen = {}
        if clock() - saved_s > CHECKPOINT_S:
            run.save()
            saved_s = clock()
    run.save()
    batches.close()


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    part = path.with_suffix(".part")
    save_file(tensors, part, metadata={"format": "pt"})
    part.replace(path)


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(CONFIGS))
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--documentation", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=Path, help="a folder of weights of the same dimensions to go on from")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    parser.add_argument("--workers", type=int, default=1, help="processes that draw batches")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    text = corpus(given.stdlib, given.documentation)
    run = Run(given.name, given.output, given.rate, given.seed, given.start, given.device)
    print(f"{len(text.learnt):,} bytes of {len(text.learnt_files)} files; from step {run.steps}", flush=True)
    train(run, text, given)


if __name__ == "__main__":
    main()
