"""Chakra execution traces (.et): what their fields mean, read and written."""
