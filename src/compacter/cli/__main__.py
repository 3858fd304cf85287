"""`python -m compacter.cli`, which torchrun can start."""

from compacter.cli import main

main()
