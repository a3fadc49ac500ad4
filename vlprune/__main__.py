"""`python -m vlprune` is the same program as `vlprune`."""

from vlprune.cli.app import main

if __name__ == "__main__":
    main()
