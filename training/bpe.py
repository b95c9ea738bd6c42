"""Learn the bundled byte-pair encoding from the text of corpus.py: a tokenizer of another kind than bytes.

python training/bpe.py --documentation html/_sources
"""

import argparse
import sysconfig
from pathlib import Path

from corpus import corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TARGET = Path(__file__).resolve().parents[1] / "model/bundled/bpe/tokenizer.json"
ENTRIES = 1024
LEARNT_BYTES = 4_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--documentation", type=Path, required=True)
    given = parser.parse_args()
    text = corpus(given.stdlib, given.documentation).learnt[:LEARNT_BYTES].tobytes().decode("utf-8", errors="ignore")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(TARGET))
    print(f"{TARGET}: {tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()
