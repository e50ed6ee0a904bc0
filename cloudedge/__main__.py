"""``python -m cloudedge``: the command line, where its entry point is not on the path."""

from cloudedge.cli import main

main()
