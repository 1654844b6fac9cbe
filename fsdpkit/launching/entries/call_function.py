"""The script of a run that was made of a function (`fsdpkit.run`). It lies in a directory of its
own, where Python looks first for modules: those of the function's author must not meet ours."""

from fsdpkit.launching.calling import main

if __name__ == "__main__":
    main()
