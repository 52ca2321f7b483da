"""What does generation need? The engine's memory and time, and how it shares a GPU with the trainer."""
