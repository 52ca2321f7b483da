"""The widgets, one file per control or group of controls."""
