"""gRPC in every service process: server, calls, channels, certificates, deadlines and probes."""
