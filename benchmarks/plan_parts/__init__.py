"""Parts of benchmarks/plan.py: how far a plan is from what was published or measured."""
