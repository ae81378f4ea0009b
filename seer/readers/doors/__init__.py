"""Doors: configurations of other tools that become jobs (`opening` tells them apart)."""
