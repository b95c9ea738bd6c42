"""Where points run: in this process, on all cores, or on many machines."""
