"""The networks of PortBugs, written once per framework as a person would write them there.

All have the same module paths and parameter roles. `torch_nets` holds the references; the other two hold the candidates
and, in the same lines, every mistake and every harmless variation that a case can ask for: a module's `quirk` (what its
code then does otherwise) and `LAYERS` (what is built instead of a layer).
"""
