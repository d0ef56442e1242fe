"""`eagre deploy`: Ray Serve places servers on the machines of a cluster, and one front streams from them."""
