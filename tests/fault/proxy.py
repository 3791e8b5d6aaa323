"""A program between workers and the coordinator that delays, cuts and loses what passes."""
import asyncio
import random
import threading

DATA = 0  # HTTP/2 frame that carries a message, so that connection settings and pings are no replies
PING = 6
GOAWAY = 7
ACK = 1  # flag of a ping that answers one
FRAME_HEADER = 9
PREFACE = 24  # bytes before the first frame of a client


class Frames:
    """The HTTP/2 frames of a byte stream, by their headers."""

    def __init__(self, skip):
        self.skip = skip  # bytes until the next header
        self.header = bytearray()

    def read(self, data):
        """(type, flags) of each frame whose header ends in `data`."""
        found = []
        at = 0
        while at < len(data):
            if self.skip:
                passed = min(self.skip, len(data) - at)
                self.skip -= passed
            else:
                passed = min(FRAME_HEADER - len(self.header), len(data) - at)
                self.header += data[at:at + passed]
                if len(self.header) == FRAME_HEADER:
                    found.append((self.header[3], self.header[4]))
                    self.skip = int.from_bytes(self.header[:3], "big")
                    self.header.clear()
            at += passed
        return found


class Proxy:
    """Listens on the unix socket `front` for the one at `back`. The attributes may be changed while it runs.

    `lose_replies`: share of the coordinator's replies that never arrive; their connection is cut, since the rest of it could
    not be read without them. Requests always arrive. `delay`: seconds by which everything is late. `is_cut`: nothing passes
    either way, without a sign (a partition); new connections are accepted and stay silent. `connections`: how many were made;
    `pings` of clients and `goaways` of the coordinator are those that have passed.
    """

    def __init__(self, front, back, seed=1):
        self.front = str(front)
        self.back = str(back)
        self.lose_replies = 0.0
        self.delay = 0.0
        self.is_cut = False
        self.lost = 0
        self.passed = 0
        self.connections = 0
        self.pings = 0
        self.goaways = 0
        self.random = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self.thread.start()
        started.wait(10)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    def _run(self, started):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_unix_server(self._serve, self.front))
        started.set()
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.05))
        self.loop.close()

    async def _serve(self, reader, writer):
        try:
            while self.is_cut:
                await asyncio.sleep(0.05)
            back_reader, back_writer = await asyncio.open_unix_connection(self.back)
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        self.connections += 1
        ways = [asyncio.ensure_future(self._pass(reader, back_writer, Frames(PREFACE), self._see_request)),
                asyncio.ensure_future(self._pass(back_reader, writer, Frames(0), self._see_reply))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the proxy is closed
        for way in ways:
            way.cancel()
        for end in (writer, back_writer):
            end.close()

    async def _pass(self, reader, writer, frames, see):
        """Until one end closes, or `see` says of a frame that it is lost."""
        while True:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                return
            if not data:
                return
            while self.is_cut:
                await asyncio.sleep(0.05)
            if self.delay:
                await asyncio.sleep(self.delay)
            if any(see(kind, flags) for kind, flags in frames.read(data)):
                return
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                return

    def _see_request(self, kind, flags):
        self.pings += kind == PING and not flags & ACK
        return False

    def _see_reply(self, kind, _):
        self.goaways += kind == GOAWAY
        if kind != DATA or self.lose_replies <= 0:
            return False
        if self.random.random() < self.lose_replies:
            self.lost += 1
            return True
        self.passed += 1
        return False
