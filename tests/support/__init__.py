"""What tests and benchmarks have in common; neither is shipped."""
