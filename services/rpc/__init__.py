"""What every service process speaks: gRPC server, settings, errors, logs, metrics, OpenAI's JSON and events."""
