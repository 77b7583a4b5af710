"""Request bodies that came packed: unpacked for scheduling and for the replicas, none of which takes them packed.

Off the event loop, and never further than the bound: a few kilobytes can stand for gigabytes.
"""

import asyncio
import zlib

from .errors import BadRequest, BodyTooLarge

CODINGS = (b"gzip", b"x-gzip", b"deflate")
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip's or zlib's, which "deflate" means (RFC 9110, 8.4.1.2)


async def unpack(body: bytes, max_bytes: int) -> bytes:
    """The body itself. Raises BodyTooLarge past `max_bytes`, BadRequest for what isn't packed so."""
    return await asyncio.to_thread(_unpack, body, max_bytes)


def _unpack(packed: bytes, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    left = max_bytes
    while packed:  # gzip may have several members, one after the other
        unpacker = zlib.decompressobj(_ANY_HEADER)
        try:
            piece = unpacker.decompress(packed, left + 1)
        except zlib.error:
            raise BadRequest("The request body is not packed as its Content-Encoding says.") from None
        left -= len(piece)
        if left < 0:
            raise BodyTooLarge(max_bytes)
        if not unpacker.eof:
            raise BadRequest("The packed request body ends too early.")
        pieces.append(piece)
        packed = unpacker.unused_data
    return b"".join(pieces)
