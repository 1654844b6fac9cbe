"""`python -m fsdpkit`: the command line without its script on PATH."""

from fsdpkit.cli.main import main

if __name__ == "__main__":
    main()
