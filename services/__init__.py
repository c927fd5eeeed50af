"""allm's services. Whatever of them is imported, this runs first, before anything imports gRPC."""

import os

# Workers are started by executing a new program; gRPC's fork handlers, which expect the child to go on in the parent's
# code, crash such a child under uvloop. gRPC reads this once, when it is first imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
