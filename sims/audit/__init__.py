"""Whether what runs is as private as it says."""
