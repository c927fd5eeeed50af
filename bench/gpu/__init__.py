"""`make gpu-check`: one command that checks every runtime on one GPU and writes down what it found."""
