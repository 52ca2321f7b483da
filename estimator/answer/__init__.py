"""Does it fit? The estimate, the verdict, the ranks."""
