"""The client behind the functions of the package."""
import os
import pathlib
import time
import uuid

import grpc

from .v1 import results_service_pb2 as results_pb
from .v1 import results_service_pb2_grpc as results_grpc
from .v1 import run_service_pb2 as run_pb
from .v1 import run_service_pb2_grpc as run_grpc
from .v1 import sweep_service_pb2 as sweep_pb
from .v1 import sweep_service_pb2_grpc as sweep_grpc

PAGE = 1000
POINTS = 100_000
# Series of one ListResults call.
SERIES = 64
# A page of a curve with vectors is larger than gRPC's default of 4 MiB.
RECEIVE_BYTES_MAX = 64 << 20


class Error(Exception):
    """A call that failed: `code` is gRPC's, the text is the coordinator's."""

    def __init__(self, code, text):
        super().__init__(f"{code.name}: {text}")
        self.code = code


def choose_server(server=None):
    """The address that is used, as the command line chooses it."""
    text = server or os.environ.get("SWITCHYARD_SERVER")
    if text:
        return f"unix:{text}" if text.startswith("/") else text
    state = os.environ.get("XDG_STATE_HOME") or str(pathlib.Path.home() / ".local/state")
    tried = [f"{state}/switchyard/coordinator/switchyard.sock", "/run/switchyard/switchyard.sock"]
    for path in tried:
        if os.path.exists(path):
            return f"unix:{path}"
    raise FileNotFoundError(f"no coordinator: $SWITCHYARD_SERVER is not set, and none of {', '.join(tried)} exists")


def connect(server=None, timeout=30.0):
    """A client of the coordinator at `server`; each call gives up after `timeout` seconds."""
    return Client(choose_server(server), timeout)


def frame(rows):
    """A data frame where pandas is installed, else the rows."""
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def state_name(value):
    return run_pb.RunState.Name(value).removeprefix("RUN_STATE_").lower()


class Client:
    """One connection. Usable as a context manager."""

    def __init__(self, address, timeout=30.0):
        self.address = address
        self.timeout = timeout
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
                                                               ("grpc.default_authority", "localhost")])
        self.sweeps_stub = sweep_grpc.SweepServiceStub(self.channel)
        self.runs_stub = run_grpc.RunServiceStub(self.channel)
        self.results_stub = results_grpc.ResultsServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.channel.close()

    def call(self, method, request, retries=0):
        """One call with the client's deadline; errors become `Error`. While the coordinator cannot be reached it is sent
        `retries` times more, a second apart."""
        for left in range(retries, -1, -1):
            try:
                return method(request, timeout=self.timeout)
            except grpc.RpcError as error:
                if left == 0 or error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise Error(error.code(), error.details()) from None
                time.sleep(1)

    def pages(self, method, request, field):
        """All items of a paged answer, in order."""
        while True:
            answer = self.call(method, request)
            yield from getattr(answer, field)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    def sweeps(self, all=False):
        """The sweeps that are not over, or all of them, newest first (messages)."""
        return list(self.pages(self.sweeps_stub.ListSweeps, sweep_pb.ListSweepsRequest(all=all, page_size=PAGE), "sweeps"))

    def runs(self, sweep=""):
        """The runs of a sweep, or all, in order (messages)."""
        return list(self.pages(self.runs_stub.ListRuns, run_pb.ListRunsRequest(sweep=sweep, page_size=PAGE), "runs"))

    def ask(self, sweep, since=0):
        """How the cells of a live sweep with `strategy: external` stand (a message): those that have ended beyond the first
        `since`, in order of ending, then those that go on and have reported. Its `ended` is the next `since`."""
        return self.call(self.sweeps_stub.Ask, sweep_pb.AskRequest(sweep=sweep, since=since))

    def tell(self, sweep, cells=(), stop=(), close=False):
        """What becomes of a sweep with `strategy: external`: new `cells`, a mapping of axis to value each, numbers of cells to
        `stop`, and whether it is to `close`, so that it completes with its last run. All of it or, with an `Error`, nothing.
        Returns the numbers of the new cells. Safe to repeat: the request carries an id."""
        request = sweep_pb.TellRequest(request_id=str(uuid.uuid4()), sweep=sweep, stop=stop, close=close)
        for cell in cells:
            values = request.cells.add().values
            for axis, value in cell.items():
                values.add(axis=axis, value=value if isinstance(value, str) else repr(value))
        return list(self.call(self.sweeps_stub.Tell, request, retries=3).cells)

    def run(self, run):
        """One run with its spec, attempts and checkpoints (a message)."""
        return self.call(self.runs_stub.GetRun, run_pb.GetRunRequest(run=run))

    def series(self, run):
        """Summaries of the series of a run, one row each."""
        answer = self.call(self.results_stub.ListSeries, results_pb.ListSeriesRequest(run=run))
        return frame([{"series": s.name, "last": s.last, "last_step": s.last_step, "best": s.best if s.has_best else None,
                       "best_step": s.best_step if s.has_best else None, "count": s.count, "non_finite": s.non_finite}
                      for s in answer.series])

    def results(self, sweep, series=()):
        """A row per run: run, state, seed, a column per axis, and for each series its best value (the last one where the
        series has no direction). Without `series` every series of the first run that has any. Non-finite values stay."""
        names = list(series)
        if not names:
            request = results_pb.ListResultsRequest(sweep=sweep, page_size=PAGE)
            for run in self.pages(self.results_stub.ListResults, request, "runs"):
                if run.state != run_pb.RUN_STATE_QUEUED:
                    answer = self.call(self.results_stub.ListSeries, results_pb.ListSeriesRequest(run=run.id))
                    names = list(dict.fromkeys(s.name for s in answer.series))
                    if names:
                        break
        runs, found = [], {}
        for start in range(0, max(len(names), 1), SERIES):
            request = results_pb.ListResultsRequest(sweep=sweep, series=names[start:start + SERIES], page_size=PAGE)
            listed = list(self.pages(self.results_stub.ListResults, request, "runs"))
            runs = runs or listed
            for run in listed:
                found.setdefault(run.id, {}).update((s.name, s) for s in run.summary)
        rows = []
        for run in runs:
            row = {"run": run.name, "state": state_name(run.state), "seed": run.seed, "router": run.router, "step": run.step}
            row.update((column.axis, column.value) for column in run.columns)
            summaries = found[run.id]
            for name in names:
                summary = summaries.get(name)
                row[name] = None if summary is None else summary.best if summary.has_best else summary.last
            rows.append(row)
        return frame(rows)

    def compare(self, sweep, by="", against="", margins=(), **fields):
        """Verdicts on the arms of a sweep (a message): `pairs` with a `sentence` each. `fields` are further ones of CompareSpec;
        what is left out comes from the comparison that the sweep registered."""
        compare = results_pb.CompareRequest(sweep=sweep, compare=dict(by=by, against=against, margins=margins, **fields))
        return self.call(self.results_stub.Compare, compare)

    def curve(self, run, series, attempt=0):
        """Points (step, ms, value, attempt) of the canonical curve, or of one attempt; `value` of a vector is a list."""
        request = results_pb.GetCurveRequest(run=run, series=series, attempt=attempt, page_size=POINTS)
        points = self.pages(self.results_stub.GetCurve, request, "points")
        return frame([{"step": p.step, "ms": p.ms, "value": list(p.values) if p.values else p.value, "attempt": p.attempt} for p in points])
