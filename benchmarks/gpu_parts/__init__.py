"""What gpu.py measures, a file each; started one after the other in processes of their own."""
