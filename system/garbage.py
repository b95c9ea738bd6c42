"""How often Python looks for cycles among young objects."""

# New objects until it looks: its own 700 come a thousand times while a command starts, and looking for cycles among
# them takes a tenth of a simulation.
YOUNG = 100_000
