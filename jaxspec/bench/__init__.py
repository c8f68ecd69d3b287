"""Measurements: `bench` times the engine against itself and a peer."""
