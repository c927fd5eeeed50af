"""The `vllm` runtime: vLLM's engine core inside the worker process, under a loop that speaks allm's messages."""
