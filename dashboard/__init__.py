"""The face: widgets and links (controls), results as figures (figures) and as text (wording)."""
