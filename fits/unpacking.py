"""Count the instructions of llama.cpp's products of quantised matrices with a new token's numbers.

FOLDERS="-I ggml/include -I ggml/src -I ggml/src/ggml-cuda"
nvcc -O3 -use_fast_math -std=c++17 -arch=sm_86 $FOLDERS -cubin -o mmvq.cubin ggml/src/ggml-cuda/mmvq.cu
cuobjdump -sass mmvq.cubin > mmvq.sass
python fits/unpacking.py mmvq.sass

Of ``mul_mat_vec_q`` for one token, which gives a row to four warps: instructions of one lane each, per weight (its
innermost loop) and per row (all around it: addresses, sums over lanes and warps). The loop may be unrolled, with an
iteration apart ahead of it for odd counts; products of four bytes, IDP, tell how often it holds its body. NOPs are no
instructions. scenarios/engines/llama.cpp.yaml has the counts of llama-cpp-python 0.3.36's sources for sm_75 and sm_86;
for sm_61 (PTX of compute_75, whose tanh was exchanged, through CUDA 12.9's ptxas) they are 1.27 times as many in the
loop and 1.5 around it, 1.35 for rows of 4,000 weights.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LANES, WARPS = 32, 4
# Of a block format, by its number in ggml.h: name, weights that a lane multiplies at once, products IDP in that.
FORMATS = {2: ("q4_0", 16, 8), 8: ("q8_0", 8, 2), 12: ("q4_k", 16, 8), 13: ("q5_k", 16, 8), 14: ("q6_k", 8, 2)}
FORMATS[23] = ("iq4_xs", 32, 8)
_FUNCTION = re.compile(r"Function : (\S+)")
_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_BRANCH = re.compile(r"\bBRA\b(?:\.\w+)*\s+(?:!?U?P\d+,\s*)?(?:`\(\S*)?0x([0-9a-f]+)")

# An instruction's address and text.
Instruction = tuple[int, str]


@dataclass(frozen=True)
class Counted:
    per_weight: float
    per_row: float


def functions(text: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Each function of a disassembly, by its name."""
    name, found = "", list[Instruction]()
    for line in text.splitlines():
        if begins := _FUNCTION.search(line):
            if name:
                yield name, found
            name, found = begins[1], []
        elif (instruction := _INSTRUCTION.match(line)) and "NOP" not in instruction[2]:
            found.append((int(instruction[1], 16), instruction[2]))
    if name:
        yield name, found


def counted(function: Sequence[Instruction], weights: int, products: int) -> Counted:
    """Instructions per weight and row, of a kernel whose lanes multiply `weights` at once by so many products."""
    back = [(int(to[1], 16), pc) for pc, text in function if (to := _BRANCH.search(text)) and int(to[1], 16) < pc]
    first, last = max((loop for loop in back if _products(function, *loop)), key=lambda loop: loop[1])
    bodies = _products(function, first, last) / products
    iteration = _between(function, first, last) / bodies
    ahead = _between(function, 0, first - 1) - _products(function, 0, first - 1) / products * iteration
    exits = [pc for pc, text in function if "EXIT" in text and pc > last]
    # All warps come to the first exit behind the loop, one of them to the last.
    all_warps = ahead + _between(function, last + 1, exits[0])
    one_warp = _between(function, exits[0] + 1, exits[-1])
    return Counted(iteration / weights, LANES * (WARPS * all_warps + one_warp))


def _between(function: Sequence[Instruction], first: int, last: int, what: str = "") -> int:
    return sum(first <= pc <= last and what in text for pc, text in function)


def _products(function: Sequence[Instruction], first: int, last: int) -> int:
    return _between(function, first, last, "IDP")


def main() -> None:
    for name, function in functions(Path(sys.argv[1]).read_text()):
        # One token; what follows its 1, in later sources, is no fusion and no small rows.
        kind = re.search(r"mul_mat_vec_qIL9ggml_type(\d+)ELi1E(?:Lb0E)*EvP", name)
        if kind and int(kind[1]) in FORMATS:
            known, weights, products = FORMATS[int(kind[1])]
            found = counted(function, weights, products)
            print(f"{known:8} {found.per_weight:.2f} a weight, {found.per_row:,.0f} a row")


if __name__ == "__main__":
    main()
