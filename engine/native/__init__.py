"""The native kernels: a small C library beside this file, built by `hatch_build.py`,
and the door to it.
"""
