"""What the operating system is asked for: aligned memory, checksums, child processes."""
