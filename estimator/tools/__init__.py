"""A user's own files, in and out, and whose defaults a run has."""
