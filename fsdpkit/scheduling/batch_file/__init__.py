"""A batch script that somebody already has, read as text: what it asks of Slurm and what it starts.

Nothing of it is ever run. recognition.py says what a file is; bash.py parses; expansion.py and
walking.py follow its variables and conditions; options.py and launch.py take the launch apart;
shape.py counts nodes, GPUs and ranks; resources.py makes keys of the `#SBATCH` lines; lines.py says
what becomes of each line. reading.py is the whole of it; moving.py makes a job of the result,
answering.py an answer.
"""
