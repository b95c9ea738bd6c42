"""How large a study may be."""

# A point takes some tenths of a second: this limit catches a mistyped axis before it becomes a year of computing.
MOST_POINTS = 50_000
