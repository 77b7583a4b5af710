"""`python -m tests.counterparts.llama_server PORT NAME FILE`: llama.cpp's server with the model in a GGUF file.

Prints its URL when it takes requests; ends when its standard input does.
"""

import os
import sys

import xllamacpp


def main() -> None:
    port, name, path = sys.argv[1:]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.model_alias = {name}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = int(port)
    parameters.n_parallel = 2
    parameters.n_ctx = 4096  # of both slots together
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.endpoint_metrics = True
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # its own end waits for the connections that are still open


if __name__ == "__main__":
    main()
