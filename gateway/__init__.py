"""The application: provider wire formats in, provider wire formats out,
with the prefix cache between.
"""
