"""How a cloud helps a device through its prefill: what is sent, how much of it, and when it is shown (P/D-Device)."""
