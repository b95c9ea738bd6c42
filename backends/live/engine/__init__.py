"""The wall-clock machine: its environment, worker threads, queues, link and channels."""
