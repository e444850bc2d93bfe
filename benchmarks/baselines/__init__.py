"""What others do, written as they do it: the slow side of a benchmark."""
