"""The calls of the systems that this field already knows, as their documents have them, on public names alone.

Each module here speaks one system's language: its signatures, files and log lines. What it lacks to do so belongs into
the core, under a public name. The packages `PPAutoDiff`, `padiff` and `troubleshooter` re-export them.
"""
