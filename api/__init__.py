"""What Python users and the command call, a function for each command that has a result, and what they give back."""
