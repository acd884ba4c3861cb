"""`python -m tablecast` is the command `tablecast`."""

from tablecast.cli import main

if __name__ == "__main__":
    main()
