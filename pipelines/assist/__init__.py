"""Devices whose prompts a cloud helps with (P/D-Device): two roles, which meet only in a channel."""
