"""`eagre deploy`: replicas that Ray Serve places on the machines of a cluster: placement, autoscaling, addresses."""
