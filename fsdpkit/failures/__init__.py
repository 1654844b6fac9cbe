"""What the words and the status that a process leaves say of why it failed."""
