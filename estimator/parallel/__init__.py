"""What each rank holds, and what is communicated. One or two files per strategy."""
