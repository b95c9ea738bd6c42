"""Where an index lies behind the KV of its file, by hand."""

from kvferry.layouts.plan_file import PlanFile


def test_vectors_of_rows_begin_storage_blocks() -> None:
    # Five vectors of 24 B take two storage blocks of 64 B in each of two rows and three layers.
    file = PlanFile(kv_bytes=1024, layers=3, rows=2, blocks=5, vector_bytes=24, alignment_bytes=64, with_index=True)
    assert file.n_bytes == 1024 + 3 * 2 * 128
    begins, lengths = file.index_rows(1, 3)
    assert (begins.tolist(), lengths.tolist()) == ([1024 + 256, 1024 + 384], [72, 72])
