"""What becomes of KV between turns: which blocks are kept where, and which go first."""
