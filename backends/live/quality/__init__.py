"""How good real decoding is: what it says and attends to, beside full attention over the same tokens."""
