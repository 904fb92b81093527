"""Frames to bytes and back. Pure; any thread, a decoder on one at a time."""

import struct
from typing import Any, Final, Generic, TypeVar

import msgspec

from amqtt_rest_bridge.link.frames import Frame, ToBridge, ToBroker

F = TypeVar("F", ToBridge, ToBroker)

CHUNK: Final = 256 * 1024
"""Bytes that are read, or written, at once."""
_LENGTH: Final = struct.Struct("<I")
_encoder: Final = msgspec.msgpack.Encoder()


def encode_parts(frame: Frame) -> tuple[bytes, bytes]:
    """Return the length and the body of a frame as two objects: joining 40 MB copies them, which takes 10 ms."""
    try:
        body = _encoder.encode(frame)
    except UnicodeEncodeError:
        # An error message may quote half a surrogate pair, from a server's JSON or a file name.
        body = _encoder.encode(_without_surrogates(msgspec.to_builtins(frame, builtin_types=(bytes,))))
    return _LENGTH.pack(len(body)), body


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame on the link."""
    return b"".join(encode_parts(frame))


class FrameDecoder(Generic[F]):
    """Cut a stream of bytes into frames of one direction; `types` is their union.

    The frames of the other direction, or bytes that are not a frame, raise `msgspec.DecodeError`.
    """

    def __init__(self, types: Any) -> None:
        self._buffer = bytearray()
        self._decoder: msgspec.msgpack.Decoder[F] = msgspec.msgpack.Decoder(types)

    def feed(self, data: bytes | memoryview) -> list[F]:
        """Add bytes and return the frames that are complete, in order."""
        buffer = self._buffer
        buffer += data
        frames: list[F] = []
        start, size = 0, len(buffer)
        with memoryview(buffer) as view:
            while size - start >= 4:
                end = start + 4 + _LENGTH.unpack_from(view, start)[0]
                if end > size:
                    break
                with view[start + 4 : end] as body:
                    frames.append(self._decoder.decode(body))
                start = end
        del buffer[:start]
        return frames


def _without_surrogates(value: Any) -> Any:
    """Write surrogates in all texts as escapes."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
