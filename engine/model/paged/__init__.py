"""The forward pass over paged attention kernels, for CUDA devices."""
