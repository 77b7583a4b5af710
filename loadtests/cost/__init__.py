"""What a gateway costs: its processor time, the latency it adds, the memory of a stream, beside other gateways."""
