"""The version, in one place."""

VERSION = "0.2.0"
