"""Measurements: of our own speed, and of the memory that the real libraries take."""
