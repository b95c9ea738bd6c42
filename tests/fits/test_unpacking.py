"""Counting a kernel's instructions in a disassembly, by hand."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FITS = Path(__file__).parents[2] / "fits"

# Three instructions and an iteration apart stand ahead of the loop, whose ten hold its body twice; two behind it until
# three of four warps end, three more of the last.
SASS = """
\t\tFunction : _Z13mul_mat_vec_qIL9ggml_type12ELi1ELb0ELb0ELb0EEvPKvS2_
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_TID.X ;
        /*0020*/              @P1 BRA 0x0130 ;
        /*0030*/                   LDG.E R2, [R4] ;
        /*0040*/                   LOP3.LUT R2, R2, 0xf0f0f0f, RZ, 0xc0, !PT ;
        /*0050*/                   LOP3.LUT R5, R5, 0xf0f0f0f, RZ, 0xc0, !PT ;
        /*0060*/                   IDP.4A.S8.S8 R3, R2, R6, R3 ;
        /*0070*/                   IDP.4A.S8.S8 R3, R5, R6, R3 ;
        /*0080*/                   LDG.E R2, [R4] ;
        /*0090*/                   LOP3.LUT R2, R2, 0xf0f0f0f, RZ, 0xc0, !PT ;
        /*00a0*/                   IDP.4A.S8.S8 R3, R2, R6, R3 ;
        /*00b0*/                   IDP.4A.S8.S8 R3, R5, R6, R3 ;
        /*00c0*/                   LDG.E R2, [R4] ;
        /*00d0*/                   LOP3.LUT R2, R2, 0xf0f0f0f, RZ, 0xc0, !PT ;
        /*00e0*/                   IDP.4A.S8.S8 R3, R2, R6, R3 ;
        /*00f0*/                   IDP.4A.S8.S8 R3, R5, R6, R3 ;
        /*0100*/                   ISETP.GE.AND P0, PT, R7, R8, PT ;
        /*0110*/             @!P0 BRA 0x80 ;
        /*0120*/                   NOP ;
        /*0130*/                   BAR.SYNC 0x0 ;
        /*0140*/              @P1 EXIT ;
        /*0150*/                   FADD R3, R3, R9 ;
        /*0160*/                   STG.E [R10], R3 ;
        /*0170*/                   EXIT ;
        /*0180*/                   BRA 0x180 ;
"""


@pytest.fixture
def unpacking() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unpacking", FITS / "unpacking.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_kernel_by_hand(unpacking: ModuleType) -> None:
    ((name, function),) = unpacking.functions(SASS)
    assert "type12" in name and len(function) == 24
    counted = unpacking.counted(function, weights=8, products=2)
    # Ten instructions in the loop are two iterations. Ahead of it stand 8, of which an iteration takes 5.
    assert counted.per_weight == 5 / 8
    assert counted.per_row == 32 * (4 * (3 + 2) + 3)
