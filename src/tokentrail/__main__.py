"""`python -m tokentrail`: the same as the `tokentrail` command."""

from tokentrail.cli import main

if __name__ == "__main__":
    main()
