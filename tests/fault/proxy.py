"""A program between workers and the coordinator that delays, cuts and loses what passes."""
import asyncio
import random
import threading

DATA = 0  # HTTP/2 frame that carries a message, so that connection settings and pings are no replies
FRAME_HEADER = 9


class Proxy:
    """Listens on the unix socket `front` for the one at `back`. The attributes may be changed while it runs.

    `lose_replies`: share of the coordinator's replies that never arrive; their connection is cut, since the rest of it could
    not be read without them. Requests always arrive. `delay`: seconds by which everything is late. `is_cut`: nothing passes
    either way, without a sign (a partition); new connections are accepted and stay silent.
    """

    def __init__(self, front, back, seed=1):
        self.front = str(front)
        self.back = str(back)
        self.lose_replies = 0.0
        self.delay = 0.0
        self.is_cut = False
        self.lost = 0
        self.passed = 0
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
        ways = [asyncio.ensure_future(self._pass(reader, back_writer, None)),
                asyncio.ensure_future(self._pass(back_reader, writer, bytearray()))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the proxy is closed
        for way in ways:
            way.cancel()
        for end in (writer, back_writer):
            end.close()

    async def _pass(self, reader, writer, frames):
        """Until one end closes, or a reply is lost. `frames`: what was read of a frame of the coordinator's; None: requests."""
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
            if frames is not None and self._loses(frames, data):
                return
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                return

    def _loses(self, frames, data):
        """Whether a reply that begins in `data` is to be lost."""
        frames += data
        while len(frames) >= FRAME_HEADER:
            size = FRAME_HEADER + int.from_bytes(frames[:3], "big")
            if frames[3] == DATA and self.lose_replies > 0:
                if self.random.random() < self.lose_replies:
                    self.lost += 1
                    return True
                self.passed += 1
            if len(frames) < size:
                # Counted; its rest goes by unseen.
                frames[3] = 0xff
                return False
            del frames[:size]
        return False
