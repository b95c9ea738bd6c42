"""Request flows: SimPy processes over a Machine and policies, one file each."""
