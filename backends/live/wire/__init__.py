"""Channels over HTTP: requests go up, everything else comes down as one stream of server-sent events."""
