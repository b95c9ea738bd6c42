"""What Python users and the command call: load, run, compare, sweep, calibrate, fidelity, and what they give back."""
