"""What this device can do, measured: a device profile with the cost tables of one model."""
