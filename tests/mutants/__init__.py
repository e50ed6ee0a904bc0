"""Named guards, and the program that removes them one at a time to see who notices."""
