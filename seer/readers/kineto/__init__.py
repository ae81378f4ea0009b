"""Traces of the PyTorch profiler (Kineto): read in pieces, turned into measurements and graphs."""
