"""Services of the operating system: aligned memory, checksums, child processes."""
