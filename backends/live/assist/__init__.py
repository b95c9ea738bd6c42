"""The real world of devices that a cloud helps."""
