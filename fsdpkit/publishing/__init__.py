"""What a centre publishes, and what it holds against its own cluster."""
