"""The estimate, the verdict, its explanation, and the ranks."""
