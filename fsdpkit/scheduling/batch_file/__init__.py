"""A batch script that somebody already has, read as text: what it asks of Slurm and what it starts.

Nothing of it is ever run. bash.py parses, walking.py follows its literal variables, options.py and
launch.py take command lines apart, resources.py the `#SBATCH` lines; reading.py puts it together.
"""
