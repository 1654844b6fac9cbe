"""Parts of goodput.py and overhead.py: what failures cost, published, measured and simulated."""
