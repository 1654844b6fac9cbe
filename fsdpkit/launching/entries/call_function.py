"""The script of a run made from a function (`fsdpkit.run`). It has a directory of its own, where
Python looks first for modules: modules of the function's author must not collide with ours.
"""

from fsdpkit.launching.calling import main

if __name__ == "__main__":
    main()
