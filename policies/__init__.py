"""Decisions only: no simpy, no torch, no clock. Facts in, instructions out."""
