"""What a person types and reads. One module a command, imported when it is called."""
