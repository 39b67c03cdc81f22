"""`python -m ludus.cli` is `ludus`."""

from ludus.cli import main

if __name__ == "__main__":
    main()
