"""One connection of HTTP/2 with gRPC's messages: frames in, frames out, and the windows of both sides.

A subclass is the server's or the client's end. It opens streams when headers come; everything below them is here.

What a peer may cost this end: `ludus.http2.stream`.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Final, cast

import hpack

from ludus.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_BYTES,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_MAX_FRAME,
    LARGEST_WINDOW,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PADDED,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SMALLEST_MAX_FRAME,
    STREAM_ID,
    WINDOW_UPDATE,
    ErrorCode,
    HeaderBlocks,
    Headers,
    Violation,
    frame,
    read_settings,
    settings,
    unpadded,
)
from ludus.http2.stream import PREFIX_BYTES, BadMessage, Calm, Stream, prefixed

STREAM_WINDOW: Final = 1 << 22
"""Bytes of a stream that a peer may send before they are read."""
CONNECTION_WINDOW: Final = 1 << 24
"""Bytes of all streams that a peer may send before they are read, beside one message of the largest size."""
OUR_MAX_FRAME: Final = 1 << 18
"""Bytes of a frame that this end takes: a large picture comes in few frames."""
MOST_STREAMS: Final = 10_000
MOST_HEADER_BYTES: Final = 1 << 16
"""Of one block of headers, and of the list that it stands for."""
CLOSE_SECONDS: Final = 2.0
"""How long the last bytes of a connection may take."""
MOST_UNREAD_ANSWERS: Final = 1000
"""To PING and SETTINGS of a peer that does not read."""
SETTINGS_COST: Final = 10.0
"""Of a SETTINGS frame, in frames: it changes the window of every stream (6.9.2)."""
MOST_SETTINGS_BYTES: Final = 6 * 64
"""Of a SETTINGS frame. HTTP/2 knows six settings of 6 bytes (6.5.2)."""


class Connection(asyncio.Protocol, ABC):
    """One end of a connection. A subclass opens streams when headers come, and says what their end means."""

    def __init__(self, max_message_bytes: int) -> None:
        self.max_message_bytes = max_message_bytes
        """Largest message that this end takes."""
        self.streams: dict[int, Stream] = {}
        self.peer_stream_window = DEFAULT_WINDOW
        self.is_full = False
        """Whether the transport has more than it can send for now."""
        self.encoder = hpack.Encoder()
        self._headers = HeaderBlocks(MOST_HEADER_BYTES)
        self._unread_answers = 0
        """To PING and SETTINGS, since the transport has been full."""
        self._transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()
        """Whether the transport has ended."""
        self._received = b""
        """The beginning of a frame."""
        self._send_window = DEFAULT_WINDOW
        # The connection's window (6.9.1): the peer gets it back as its bytes are read, so it stops at `window`.
        self.window = min(CONNECTION_WINDOW + max_message_bytes, LARGEST_WINDOW)
        """Bytes that the peer may send before it gets new window."""
        self._used_window = 0
        """Bytes that came, and for which the peer has got no new window yet."""
        self._read = 0
        """Those of them that were read, or are not kept."""
        self._partial = 0
        """Bytes of incomplete messages."""
        self._unsent: dict[int, Stream] = {}
        """Streams with bytes that wait for a window."""
        self.unsent_bytes = 0
        self.calm = Calm()
        self._peer_max_frame = SMALLEST_MAX_FRAME
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of headers that go on in the next frame."""

    # What a subclass says ---------------------------------------------------------------------------------------

    @abstractmethod
    def headers_came(self, number: int, headers: Headers, *, ended: bool) -> None:
        """Take headers of a stream. Raises Violation."""

    def messages_came(self, stream: Stream) -> None:
        """Take note that a stream has messages, or has ended, or both."""
        stream.wake()

    @abstractmethod
    def message_failed(self, stream: Stream, error: BadMessage) -> None:
        """End a stream whose message cannot be taken."""

    def finished(self, stream: Stream) -> None:
        """Take note that this side of a stream has sent its last frame."""

    def stream_broke(self, stream: Stream) -> None:
        """Take note that a stream is reset, or lost with its connection."""
        stream.wake()

    # The transport's side ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with this end's settings."""
        self._transport = cast("asyncio.Transport", transport)
        # SETTINGS is the first frame of either end (3.4). It sets the window of each stream alone: the connection's
        # begins with 65,535 bytes, which only WINDOW_UPDATE on stream 0 changes (6.9.2).
        limits = {MAX_CONCURRENT_STREAMS: MOST_STREAMS, INITIAL_WINDOW_SIZE: STREAM_WINDOW}
        limits |= {MAX_FRAME_SIZE: OUR_MAX_FRAME, MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES}
        more_window = self.window - DEFAULT_WINDOW
        self.write(settings(limits) + frame(WINDOW_UPDATE, 0, 0, more_window.to_bytes(4, "big")))

    def data_received(self, data: bytes) -> None:
        """Take frames; what breaks the protocol ends the connection with GOAWAY."""
        try:
            self._received = self._take_frames(self._received + data if self._received else data)
        except Violation as error:
            self.go_away(error.code, str(error))
            self.close()

    def _take_frames(self, received: bytes) -> bytes:
        """Take the whole frames; return the beginning of the next one. Raises Violation."""
        start = 0
        while len(received) - start >= HEADER_BYTES:
            # 4.1: 24 bits of length, 8 of type, 8 of flags, one reserved, 31 of the stream's number.
            length = int.from_bytes(received[start : start + 3], "big")
            if length > OUR_MAX_FRAME:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes came")
            end = start + HEADER_BYTES + length
            if end > len(received):
                break
            kind, flags = received[start + 3], received[start + 4]
            number = int.from_bytes(received[start + 5 : start + 9], "big") & STREAM_ID
            payload = received[start + HEADER_BYTES : end]
            start = end
            # 6.10: the frames of one block of headers follow each other; no frame of any stream may lie between.
            if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
                raise Violation(ErrorCode.PROTOCOL_ERROR, "headers were interrupted by another frame")
            if kind == DATA:
                self._take_data(flags, number, payload)
            elif kind == HEADERS:
                self._take_headers(flags, number, payload)
            elif kind == WINDOW_UPDATE:
                self._take_window(number, payload)
            elif kind == CONTINUATION:
                self._take_continuation(flags, payload)
            elif kind == RST_STREAM:
                if (stream := self.streams.pop(number, None)) is not None:
                    self._break(stream)
                    self.calm.disturb()
            elif kind == SETTINGS:
                if not flags & ACK:
                    self._take_settings(payload)
            elif kind == PING:
                if not flags & ACK:  # 6.7: the answer has the same eight bytes
                    self.calm.disturb()
                    self._answer(frame(PING, ACK, 0, payload))
            elif kind == PUSH_PROMISE:  # 8.4: a client cannot push, and gRPC's servers do not
                raise Violation(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE came; this end asks for none")
            elif kind != GOAWAY:  # a close follows it; PRIORITY (5.3.2) and unknown kinds (5.5) are only counted
                self.calm.disturb()
        return received[start:]

    def connection_lost(self, _: Exception | None) -> None:
        """Break what is under way."""
        self._transport = None
        self.lost.set()
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            self._break(stream)

    def pause_writing(self) -> None:
        """Stop writers: the peer reads too slowly."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Wake writers: the peer has read."""
        self.is_full = False
        for stream in self.streams.values():
            stream.wake()

    def write(self, data: bytes) -> None:
        """Send bytes, if the connection is there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after what was written, or without it where the peer does not read it in time."""
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._transport.abort)

    def go_away(self, code: ErrorCode, sentence: str) -> None:
        """Say why the connection ends, or that it takes no more streams."""
        # 6.8: the frame names the newest stream that was handled; a client may repeat calls of later ones elsewhere.
        last = max(self.streams, default=0)
        self.write(frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + int(code).to_bytes(4, "big") + sentence.encode()))

    # Streams ----------------------------------------------------------------------------------------------------

    def new_stream_limits(self) -> tuple[int, int]:
        """Return a new stream's window for sending, and the largest message that it takes."""
        return self.peer_stream_window, self.max_message_bytes

    def take(self, stream: Stream) -> bytes:
        """Return the next message of a stream, which is there."""
        message = stream.inbox.popleft()
        size = min(PREFIX_BYTES + len(message), stream.held_bytes)
        stream.held_bytes -= size
        self._read += size
        self._give_window(stream)
        return message

    def put(self, stream: Stream, message: bytes) -> None:
        """Send a message as DATA, or what the windows allow of it; the rest follows."""
        if stream.broken:
            return
        data = prefixed(message)
        # DATA counts against the windows of its stream and of the connection (6.9.1); other frames against none.
        room = min(stream.send_window, self._send_window)
        if not stream.unsent and len(data) <= min(room, self._peer_max_frame):
            stream.send_window -= len(data)
            self._send_window -= len(data)
            self.write(frame(DATA, 0, stream.number, data))
        else:
            stream.unsent += data
            self._unsent[stream.number] = stream
            self.unsent_bytes += len(data)
            self._flush(stream)

    async def flushed(self, stream: Stream) -> None:
        """Wait until everything of a stream is with the transport, and the transport takes more."""
        while (stream.unsent or self.is_full) and not stream.broken:
            await stream.changed()

    # Sending ----------------------------------------------------------------------------------------------------

    def finish(self, stream: Stream, last: bytes) -> None:
        """End this side of a stream with a frame, behind everything that it has still to send."""
        stream.last = last
        self._flush(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Break a stream off."""
        if self.streams.pop(stream.number, None) is not None:
            self.write(frame(RST_STREAM, 0, stream.number, int(code).to_bytes(4, "big")))
            self._break(stream)

    def forget(self, stream: Stream) -> None:
        """Drop what came of a stream that is not read any more."""
        self._partial -= len(stream.part)
        stream.part.clear()
        self._read += stream.held_bytes
        stream.held_bytes = 0
        self._give_window()

    def _give_window(self, stream: Stream | None = None) -> None:
        """Give the peer new window for what was read: for the connection, and for a stream."""
        # 6.9: a receiver decides when it gives window back. It gives back half of a window at once, which saves frames;
        # the peer sends into the other half meanwhile. Of the connection's, it also gives what the peer needs to go on.
        # Unread bytes give no window back: they stop the peer.
        if self._read >= max(1, min(CONNECTION_WINDOW // 2, self.window - self._used_window)):
            self.write(frame(WINDOW_UPDATE, 0, 0, self._read.to_bytes(4, "big")))
            self._used_window -= self._read
            self._read = 0
        if stream is not None and stream.credit >= STREAM_WINDOW // 2 and not (stream.ended or stream.inbox):
            self.write(frame(WINDOW_UPDATE, 0, stream.number, stream.credit.to_bytes(4, "big")))
            stream.credit = 0

    def _flush(self, stream: Stream) -> None:
        while stream.unsent:
            # 6.9.2: a stream's window is below 0 where the peer has made its windows smaller; nothing is sent then.
            size = min(len(stream.unsent), self._peer_max_frame, stream.send_window, self._send_window)
            if size <= 0:
                return
            stream.send_window -= size
            self._send_window -= size
            self.write(frame(DATA, 0, stream.number, bytes(stream.unsent[:size])))
            del stream.unsent[:size]
            self.unsent_bytes -= size
        self._unsent.pop(stream.number, None)
        if stream.last:
            self.write(stream.last)
            self.finished(stream)
        stream.wake()

    def _break(self, stream: Stream) -> None:
        stream.broken = True
        self.forget(stream)
        if self._unsent.pop(stream.number, None) is not None:
            self.unsent_bytes -= len(stream.unsent)
            stream.unsent.clear()
        self.stream_broke(stream)

    # Frames -----------------------------------------------------------------------------------------------------

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        if not size and not flags & END_STREAM:
            self.calm.disturb()
        self._used_window += size  # padding counts, too (6.9.1)
        if self._used_window > self.window:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window came")
        stream = self.streams.get(number)
        if stream is None or stream.ended:
            # 5.1: frames of a stream that this end has finished may still be on their way. They are dropped, and count
            # for the connection's window (6.9), of which the peer would run out otherwise.
            self._read += size
            self._give_window()
            return
        stream.credit += size
        if stream.credit > STREAM_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, f"stream {number} sent more than its window")
        stream.ended = bool(flags & END_STREAM)
        if flags & PADDED:
            payload = unpadded(payload)
        stream.held_bytes += len(payload)
        self._read += size - len(payload)
        self._partial -= len(stream.part)
        error = stream.receive(payload)
        self._partial += len(stream.part)
        if error is None and self._partial > self.window - OUR_MAX_FRAME:
            error = BadMessage(8, "the incomplete messages of this connection leave no room for their rests")
        if error is not None:
            self.calm.disturb()
            self.forget(stream)
            self.message_failed(stream, error)
            return
        self._give_window(stream)
        if stream.inbox or stream.ended:
            self.messages_came(stream)

    def _take_headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & HAS_PRIORITY:  # 6.2: 31 bits of another stream and 8 of weight, which 5.3.2 deprecates
            payload = payload[5:]
        if flags & END_HEADERS:
            self.headers_came(number, self._headers.read(payload), ended=bool(flags & END_STREAM))
        else:  # 6.10: the block goes on in CONTINUATION; END_STREAM stands in this frame alone
            self._block = (number, flags, bytearray(payload))

    def _take_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION came without headers before it")
        number, first_flags, block = self._block
        block += payload
        # HTTP/2 limits neither the number of CONTINUATION frames nor the size of a block (10.5.1); this end does.
        if not payload:
            self.calm.disturb()
        if len(block) > MOST_HEADER_BYTES:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, f"headers of over {MOST_HEADER_BYTES} bytes came")
        if flags & END_HEADERS:
            self._block = None
            self.headers_came(number, self._headers.read(bytes(block)), ended=bool(first_flags & END_STREAM))

    def _take_settings(self, payload: bytes) -> None:
        self.calm.disturb(SETTINGS_COST)
        if len(payload) > MOST_SETTINGS_BYTES:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, f"a SETTINGS frame of {len(payload)} bytes came")
        for name, value in read_settings(payload):
            if name == INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW:
                    raise Violation(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes is too large")
                # 6.9.2: the difference to the former value changes the windows of open streams, not the connection's.
                for stream in self.streams.values():
                    stream.send_window += value - self.peer_stream_window
                    if stream.send_window > LARGEST_WINDOW:  # 6.9.2
                        raise Violation(
                            ErrorCode.FLOW_CONTROL_ERROR, f"the window of stream {stream.number} is too large"
                        )
                self.peer_stream_window = value
            elif name == MAX_FRAME_SIZE:
                if not SMALLEST_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                    raise Violation(ErrorCode.PROTOCOL_ERROR, f"{value} is no size of a frame")
                self._peer_max_frame = value
            elif name == HEADER_TABLE_SIZE:  # the largest table that our encoder may use (RFC 7541, 4.2)
                self.encoder.header_table_size = min(value, self.encoder.header_table_size)
        self._answer(frame(SETTINGS, ACK, 0))  # 6.5.3: all values hold from here on
        self._flush_all()

    def _answer(self, data: bytes) -> None:
        """Answer PING or SETTINGS. Raises Violation if the peer goes on sending them and reads no answer."""
        self._unread_answers = self._unread_answers + 1 if self.is_full else 0
        if self._unread_answers > MOST_UNREAD_ANSWERS:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "the answers to PING and SETTINGS are not read")
        self.write(data)

    def _take_window(self, number: int, payload: bytes) -> None:
        size = int.from_bytes(payload, "big") & LARGEST_WINDOW
        if not size:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a window grows by 0 (6.9)")
        if number == 0:
            self._send_window += size
            if self._send_window > LARGEST_WINDOW:  # 6.9.1: ends the connection; of a stream, only the stream (below)
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._flush_all()
        elif (stream := self.streams.get(number)) is not None:
            stream.send_window += size
            if stream.send_window > LARGEST_WINDOW:
                self.reset(stream, ErrorCode.FLOW_CONTROL_ERROR)
                self.calm.disturb()
            else:
                self._flush(stream)

    def _flush_all(self) -> None:
        for stream in [*self._unsent.values()]:
            if self._send_window <= 0:
                break
            self._flush(stream)
