"""`python -m compacter_cli`, which torchrun can start."""

from compacter_cli import main

main()
