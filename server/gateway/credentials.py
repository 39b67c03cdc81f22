"""TLS of gRPC servers: the gateway's, and the collectors'."""

import grpc

from ludus.protocol.server_tls import TlsPair


def server_credentials(pair: TlsPair) -> grpc.ServerCredentials:
    """Return what a gRPC server speaks TLS with; where an authority for clients is named, they must show that they are
    its own.
    """
    return grpc.ssl_server_credentials(
        [(pair.key, pair.certificate)], pair.client_ca, require_client_auth=pair.client_ca is not None
    )
